"""Client sessions: what the broker remembers of an MQTT client between its connections (MQTT 5 section 4.1).

`Client` is one session: subscriptions, in-flight deliveries, QoS 2 packet ids. `Clients` is all of them: it restores
sessions at start, hands a session to a new connection (taking it from an older one) and ends those that expired.
Nothing here reads packets; `edge.broker.mqtt.session` does that for one connection at a time.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec

from bridge.message import AMQP, RETAIN, Run, Stored
from edge.broker.addresses import AddressType
from edge.broker.contract import Outcome, Subscription
from edge.broker.limits import SESSIONS_MAX
from edge.broker.mqtt.connection import Connection
from edge.broker.mqtt.events import Delivery, SubscriptionRequest, Will
from edge.broker.mqtt.state import SessionState
from edge.broker.router import AddressError, Router, SubscribeOptions
from edge.broker.store.contract import Store
from edge.broker.subscriptions.pattern import Joinable

NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry interval that means: for ever (MQTT 5 section 3.1.2.11.2)."""

SHARE_PREFIX = "$share/"
UNLIMITED = 1 << 30
"""Credit of a QoS 0 subscriber whose socket takes data: deliveries leave no trace that would need a bound."""


class Attachment(Protocol):
    """The connection a client has at the moment."""

    connection: Connection

    @property
    def congested(self) -> bool:
        """The peer does not read fast enough."""
        ...

    def flush_soon(self) -> None:
        """Something is to be sent."""
        ...

    def taken_over(self) -> None:
        """Another connection has the session now."""
        ...


class Record(msgspec.Struct):
    """What is kept of a session on disk."""

    expiry_s: int
    subscriptions: list[tuple[SubscriptionRequest, int]]
    """Request and subscription identifier (0: none)."""


class _Token(NamedTuple):
    """How a delivery finds back to where it is settled."""

    subscription: Subscription
    position: int
    subscriber: Subscriber


class Subscriber:
    """One subscription of a client: the router's consumer for it."""

    __slots__ = ("client", "competes", "durable", "identifiers", "kept", "live", "name", "request")

    def __init__(self, client: Client, request: SubscriptionRequest, identifier: int, *, kept: bool) -> None:
        """`kept`: messages wait for it while the client is away (decided when it is made, for its life)."""
        self.name = client.client_id
        self.kept = kept
        self.competes = False
        """Others take what this one leaves: a queue, or a shared subscription."""
        self.client = client
        self.request = request
        self.identifiers = (identifier,) if identifier else ()
        self.durable: Joinable | None = None
        self.live: Joinable | None = None

    @property
    def credit(self) -> int:
        attachment = self.client.attachment
        if attachment is None or attachment.congested:
            return 0
        if self.request.qos == 0:
            return UNLIMITED
        window = attachment.connection.window
        if window <= 0:
            self.client.starved[self] = None
        return window

    def deliver(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        self.send(subscription, stored, retain=self.request.retain_as_published and bool(run.flags & RETAIN))

    def pump(self) -> None:
        """Deliver what is waiting."""
        for joined in (self.durable, self.live):
            if joined is not None:
                joined.pump()

    def send(self, subscription: Subscription, stored: Stored, *, retain: bool) -> None:
        """Send the messages of a run to the client; `retain` is the RETAIN flag they carry."""
        attachment = self.client.attachment
        if attachment is None:
            raise LookupError(f"{self.name}: delivery without a connection")
        position = stored.position
        for run in self.client.translate(stored.run) if stored.run.flags & AMQP else (stored.run,):
            qos = min(run.qos, self.request.qos)
            token = _Token(subscription, position, self)
            skipped = attachment.connection.deliver(Delivery(run, qos, retain, token, self.identifiers))
            if position < 0:
                continue
            if qos == 0:
                subscription.settle(self, position, position + len(run.bodies) - 1, Outcome.ACCEPTED)
            for i in skipped if qos else ():  # above the client's maximum: as if delivered [MQTT-3.1.2-25]
                subscription.settle(self, position + i, position + i, Outcome.ACCEPTED)
            position += len(run.bodies)
        attachment.flush_soon()


class Client:
    """One session."""

    def __init__(self, client_id: str, translate: Callable[[Run], list[Run]]) -> None:
        self.client_id = client_id
        self.translate = translate
        self.state = SessionState()
        self.expiry_s = 0
        self.recorded = False
        """There is a record of it on disk."""
        self.subscribers: dict[str, Subscriber] = {}
        self.attachment: Attachment | None = None
        self.expires_at: float | None = None
        """When the session ends (monotonic seconds); None while connected, or when it never does."""
        self.will_due: tuple[float, Will] | None = None
        """A delayed Will Message and when to publish it (MQTT 5 section 3.1.3.2.2)."""
        self.starved: dict[Subscriber, None] = {}
        """Subscribers the router wanted to serve while the in-flight window was full."""
        self._retained: deque[tuple[Subscriber, Subscription, deque[Run]]] = deque()

    @property
    def durable(self) -> bool:
        """The session outlives its connection."""
        return self.expiry_s > 0

    def acknowledged(self, messages: Iterable[tuple[Delivery, int]]) -> None:
        """The client is done with these deliveries: settle them as ranges, then use the window they freed."""
        last_delivery: Delivery | None = None
        first = last = -2
        for delivery, i in messages:
            if delivery is last_delivery and i == last + 1:
                last = i
                continue
            if last_delivery is not None:
                self._settle(last_delivery, first, last)
            last_delivery, first, last = delivery, i, i
        if last_delivery is not None:
            self._settle(last_delivery, first, last)
        self.pump_starved()

    def _settle(self, delivery: Delivery, first: int, last: int) -> None:
        token = delivery.token
        if isinstance(token, _Token) and token.position >= 0:
            position = token.position
            token.subscription.settle(token.subscriber, position + first, position + last, Outcome.ACCEPTED)

    def pump_starved(self) -> None:
        """The window, or the socket, has room again."""
        self._send_retained()
        if self.starved:
            starved, self.starved = self.starved, {}
            for subscriber in starved:
                subscriber.pump()

    def pump(self) -> None:
        """Serve every subscription (after a connect)."""
        self._send_retained()
        for subscriber in list(self.subscribers.values()):
            subscriber.pump()

    def give_back(self) -> None:
        """Forget in-flight messages that others may have instead, before they are given to them."""
        outgoing = self.state.outgoing
        for packet_id, (delivery, _) in list(outgoing.items()):
            if isinstance(delivery.token, _Token) and delivery.token.subscriber.competes:
                del outgoing[packet_id]

    def feed_retained(self, subscriber: Subscriber, subscription: Subscription, runs: Iterable[Run]) -> None:
        """Send retained messages as the window allows."""
        waiting = deque(runs)
        if waiting:
            self._retained.append((subscriber, subscription, waiting))
            self._send_retained()

    def drop_retained(self) -> None:
        """The connection is gone; a new one gets retained messages for new subscriptions only."""
        self._retained.clear()

    def _send_retained(self) -> None:
        while self._retained:
            subscriber, subscription, waiting = self._retained[0]
            while waiting:
                if subscriber.credit <= 0:
                    return
                subscriber.send(subscription, Stored(-1, 0, waiting.popleft()), retain=True)
            self._retained.popleft()


class Clients:
    """All sessions of the broker, by client id."""

    def __init__(self, router: Router, store: Store, translate: Callable[[Run], list[Run]]) -> None:
        """`translate` makes MQTT runs of a run of AMQP messages."""
        self._router = router
        self._store = store
        self._translate = translate
        self._clients: dict[str, Client] = {}
        for client_id, value in store.items("session"):
            self._restore(client_id, msgspec.msgpack.decode(value, type=Record))
        for client_id, value in store.items("incoming"):
            if client_id in self._clients:
                self._clients[client_id].state.restore_incoming(array.array("H", value))

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def connected(self) -> int:
        """Clients with a connection."""
        return sum(1 for client in self._clients.values() if client.attachment is not None)

    @property
    def full(self) -> bool:
        """No room for another session."""
        return len(self._clients) >= SESSIONS_MAX

    def attach(
        self, client_id: str, attachment: Attachment, *, clean_start: bool, expiry_s: int
    ) -> tuple[Client, bool]:
        """Give the session of `client_id` to a connection; returns it and whether it was there before.

        A connection that had it is taken over [MQTT-3.1.4-3]; a clean start ends the old session [MQTT-3.1.2-4].
        """
        client = self._clients.get(client_id)
        if client is not None and client.attachment is not None:
            client.attachment.taken_over()
        client = self._clients.get(client_id)  # the takeover may have ended it
        if client is not None and clean_start:
            self._end(client)
            client = None
        present = client is not None
        if client is None:
            client = self._clients[client_id] = Client(client_id, self._translate)
        client.attachment = attachment
        client.expires_at = None
        client.will_due = None
        client.expiry_s = expiry_s
        self._save(client)
        for subscriber in client.subscribers.values():
            self._join(subscriber)
        return client, present

    def detach(self, client: Client, now: float) -> None:
        """The client's connection is gone: keep the session for its expiry interval, or end it."""
        client.attachment = None
        client.starved.clear()
        client.drop_retained()
        if not client.durable:
            self._end(client)
            return
        if client.expiry_s != NEVER_EXPIRES:
            client.expires_at = now + client.expiry_s
        client.give_back()
        for subscriber in client.subscribers.values():
            if subscriber.durable is not None:
                subscriber.durable.leave(subscriber, keep=not subscriber.competes)
            if subscriber.live is not None:
                self._router.unsubscribe(subscriber, subscriber.live, forget=False)
                subscriber.live = None

    def subscribe(self, client: Client, request: SubscriptionRequest, identifier: int) -> tuple[Subscriber, bool]:
        """Add or replace a subscription; returns it and whether it is new. Raises AddressError."""
        old = client.subscribers.get(request.filter)
        if old is not None and old.request.qos == request.qos and old.request.no_local == request.no_local:
            # the same but for how it is delivered: what is in flight stays in flight
            old.request = request
            old.identifiers = (identifier,) if identifier else ()
            self._save(client)
            return old, False
        subscriber = Subscriber(client, request, identifier, kept=client.durable and request.qos > 0)
        if old is not None:
            self._leave(old, forget=request.qos == 0)
        try:
            self._join(subscriber)
        except AddressError:
            client.subscribers.pop(request.filter, None)
            self._save(client)
            raise
        client.subscribers[request.filter] = subscriber
        self._save(client)
        return subscriber, old is None

    def unsubscribe(self, client: Client, pattern: str) -> bool:
        """Remove a subscription; False when there was none."""
        subscriber = client.subscribers.pop(pattern, None)
        if subscriber is None:
            return False
        self._leave(subscriber, forget=True)
        self._save(client)
        return True

    def save_incoming(self, client: Client) -> None:
        """Keep the QoS 2 packet ids under way, in the group that keeps their messages."""
        if client.recorded:
            ids = array.array("H", sorted(client.state.incoming))
            self._store.put("incoming", client.client_id, ids.tobytes())

    def tick(self, now: float, publish_will: Callable[[Client, Will], None]) -> None:
        """Publish delayed wills that are due, end sessions that expired."""
        for client in list(self._clients.values()):
            if client.attachment is None and client.expires_at is None and client.expiry_s != NEVER_EXPIRES:
                client.expires_at = now + client.expiry_s  # restored: its time away counts from our start
            ended = client.expires_at is not None and client.expires_at <= now
            if client.will_due is not None and (ended or client.will_due[0] <= now):
                will, client.will_due = client.will_due[1], None
                publish_will(client, will)
            if ended:
                self._end(client)

    # --- inside -----------------------------------------------------------------------------------------------

    def _restore(self, client_id: str, record: Record) -> None:
        client = self._clients[client_id] = Client(client_id, self._translate)
        client.expiry_s = record.expiry_s
        for request, identifier in record.subscriptions:
            client.subscribers[request.filter] = Subscriber(client, request, identifier, kept=request.qos > 0)
        client.recorded = True

    def _join(self, subscriber: Subscriber) -> None:
        """Join what the request asks for: a durable subscription where messages are kept, a live one for the rest."""
        client, request = subscriber.client, subscriber.request
        pattern, share = request.filter, None
        if pattern.startswith(SHARE_PREFIX):
            share, pattern = pattern[len(SHARE_PREFIX) :].split("/", 1)
        durable = subscriber.kept
        options = SubscribeOptions(qos=request.qos, no_local=request.no_local)
        if durable:
            name = f"share/{share}/{pattern}" if share else f"mqtt/{client.client_id}/{pattern}"
            options = msgspec.structs.replace(options, durable_name=name, shared=share is not None)
        elif share:
            options = msgspec.structs.replace(options, share_name=f"{share}/{pattern}")
        joined = self._router.subscribe(subscriber, pattern, options)
        subscriber.durable = subscriber.live = None
        is_topic = self._router.address_type(pattern) is AddressType.TOPIC
        subscriber.competes = share is not None or not is_topic
        if not durable:
            subscriber.live = joined
            return
        subscriber.durable = joined
        if share is None and is_topic:
            live = SubscribeOptions(qos=0, no_local=request.no_local, qos0_only=True)
            subscriber.live = self._router.subscribe(subscriber, pattern, live)

    def _leave(self, subscriber: Subscriber, *, forget: bool) -> None:
        for joined in (subscriber.durable, subscriber.live):
            if joined is not None:
                self._router.unsubscribe(subscriber, joined, forget=forget)
        if forget and subscriber.durable is None and subscriber.kept:
            # restored and never connected since: the durable subscription is there without being joined
            pattern = subscriber.request.filter
            if not pattern.startswith(SHARE_PREFIX):
                self._router.forget(f"mqtt/{subscriber.client.client_id}/{pattern}")

    def _end(self, client: Client) -> None:
        """Forget the session and everything kept for it."""
        for subscriber in client.subscribers.values():
            self._leave(subscriber, forget=True)
        client.subscribers.clear()
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
        if client.recorded:
            self._store.delete("session", client.client_id)
            self._store.delete("incoming", client.client_id)

    def _save(self, client: Client) -> None:
        if client.durable or client.recorded:
            client.recorded = True
            requests = [(s.request, s.identifiers[0] if s.identifiers else 0) for s in client.subscribers.values()]
            record = Record(client.expiry_s, requests)
            self._store.put("session", client.client_id, msgspec.msgpack.encode(record))
