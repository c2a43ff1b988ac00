"""One MQTT session (MQTT 5 section 4.1): its subscriptions, and the delivery of their messages.

`Subscriber` is the router's consumer for one subscription of an `MqttSession`. This module reads no packets. What
outlives the session object is stored by `edge.broker.mqtt.session_registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

import msgspec

from bridge.message import AMQP, QOS_MASK, RETAIN, Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.batches import SETTLED, LiveBatch
from edge.broker.delivery.durable import DurableSubscription
from edge.broker.delivery.pattern import Joinable
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import DeliveryOutcome, MessageCounts, Subscription
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.delivery_budget import DeliveryBudget, PendingDelivery
from edge.broker.mqtt.events import MqttDelivery, SubscriptionRequest, Will
from edge.broker.mqtt.expiry import EXPIRY_IDENTIFIER, Lifetime
from edge.broker.mqtt.limits import USUAL_TOPIC_CHARACTERS_MAX
from edge.broker.mqtt.names import SHARE
from edge.broker.mqtt.overlap import MergedOptions, OverlapMember, Overlaps
from edge.broker.mqtt.qos2_journal import Qos2Journal, ReleasedMessage
from edge.broker.mqtt.retained_delivery import RetainedDelivery
from edge.broker.mqtt.state import SessionState

UNLIMITED = 1 << 30
"""Credit of a QoS 0 subscriber while its socket is writable: such deliveries need no state."""


class ClientConnection(NamedTuple):
    """Connection of a client, for operators."""

    remote: str
    """``host:port`` of the peer, or ``-``."""
    version: int
    """Protocol level: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    cipher: tuple[str, str] | None
    """Cipher and version of TLS; None without TLS."""
    connected_at: float
    """UTC seconds of CONNACK."""


class AttachedConnection(Protocol):
    """Current connection of a client, implemented by its handler."""

    connection: MqttConnection

    @property
    def received(self) -> int:
        """Messages that the client has sent over this connection."""
        ...

    def describe(self) -> ClientConnection:
        """Return the properties of the connection."""
        ...

    @property
    def congested(self) -> bool:
        """True while the peer does not read fast enough."""
        ...

    def flush_soon(self) -> None:
        """Send the written bytes soon."""
        ...

    def continue_soon(self) -> None:
        """Call `MqttSession.continue_delivery` in the next turn of the loop."""
        ...

    def taken_over(self) -> None:
        """Close: another connection has the session now."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...


class Subscriber(OverlapMember):
    """One subscription of a client, as the router's consumer."""

    overlaps: bool
    """Another subscription of the client matches some of the same topics. Declared for the type checker."""

    __slots__ = ("competes", "durable", "identifiers", "kept", "kind", "live", "name", "overlaps", "request", "session")

    def __init__(self, session: MqttSession, request: SubscriptionRequest, identifier: int, *, kept: bool) -> None:
        """`kept`: messages are stored for it while the client is disconnected."""
        self.name = session.client_id
        self.kept = kept
        """Stays true after a change to QoS 0, until all stored messages are delivered (`is_drained`)."""
        self.kind = AddressType.TOPIC
        """Type of the address that it has joined."""
        self.competes = False
        """True if it shares messages with other consumers: a queue, or a shared subscription."""
        self.overlaps = False
        self.session = session
        self.request = request
        self.identifiers: tuple[int, ...] = (identifier,) if identifier else ()
        self.durable: Joinable | None = None
        self.live: Joinable | None = None

    @property
    def user(self) -> str:  # type: ignore[override]  # of the session
        return self.session.user

    @property
    def joined_filter(self) -> str:
        """The filter that the router matches, once `kind` is known."""
        return self.request.filter

    @property
    def shared(self) -> bool:
        """True for a member of a shared subscription."""
        return self.request.filter.startswith(SHARE)

    @property
    def is_drained(self) -> bool:
        """True if its QoS was changed to 0 and all stored messages are delivered, so nothing has to be kept for it."""
        durable = self.durable if self.kept and self.request.qos == 0 else None
        return isinstance(durable, DurableSubscription) and durable.is_drained

    @property
    def credit(self) -> int:
        attachment = self.session.attachment
        if attachment is None or attachment.congested:
            return 0
        turn = self.session.turn
        if turn is not None and turn.over:
            self.session.wait_for_credit(self)
            return 0
        if self.request.qos == 0 and not self.session.resuming:
            return UNLIMITED
        window = attachment.connection.window
        if window <= 0:
            self.session.wait_for_credit(self)
        return window

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        if isinstance(batch, LiveBatch) and len(batch) > 1 and self._deliver_live(subscription, batch):
            return
        for stored in batch:
            self.deliver_run(subscription, stored)

    def deliver_run(self, subscription: Subscription, stored: Stored) -> None:
        if self.overlaps and isinstance(subscription, LogSubscription):
            self._deliver_once(subscription, stored)
            return
        request = self.request
        retain = request.retain_as_published and bool(stored.run.flags & RETAIN)
        self.send(subscription, stored, qos_max=request.qos, identifiers=self.identifiers, retain=retain)

    def _deliver_live(self, subscription: Subscription, batch: LiveBatch) -> bool:
        """Write all packets with one call. Return False and deliver nothing if one needs the full path."""
        session, qos_max = self.session, self.request.qos
        attachment = session.attachment
        if attachment is None or session.turn is not None:
            return False
        ids = batch.acknowledged_messages if qos_max else 0
        alike = MqttDelivery(
            batch.runs[0], min(qos_max, 1), False, DeliveryRef(subscription, SETTLED, self), self.identifiers
        )
        if not attachment.connection.deliver_all(batch.runs, alike, ids):
            return False
        session.count_sent(sum(len(run.bodies) for run in batch.runs))
        attachment.flush_soon()
        return True

    def _deliver_once(self, subscription: LogSubscription, stored: Stored) -> None:
        """Deliver one copy for all matching subscriptions of the client [MQTT-3.3.4-2].

        The first one sends it with the highest QoS [MQTT-3.3.5-1] and all identifiers [MQTT-3.3.4-4]. The others settle
        their copies unsent.
        """
        overlaps = self.session.overlaps
        combined = overlaps.combined(stored.run)
        retain = combined.retain_as_published and bool(stored.run.flags & RETAIN)
        for part, sent in overlaps.split_sent(subscription.log, stored):
            if sent:
                last = part.position + len(part.run.bodies) - 1
                subscription.settle(self, part.position, last, DeliveryOutcome.ACCEPTED)
            else:
                self.send(subscription, part, qos_max=combined.qos, identifiers=combined.identifiers, retain=retain)

    def abort(self) -> None:
        if self.session.attachment is not None:
            self.session.attachment.abort()

    @property
    def client_overlaps(self) -> Overlaps:
        """See `OverlapMember`."""
        return self.session.overlaps

    def mark_overlap(self, *, overlaps: bool = True) -> None:
        """See `OverlapMember`."""
        self.overlaps = overlaps

    def merged(self, combined: MergedOptions, live: Joinable) -> Subscriber:
        """Create a subscriber with combined options that joins this live subscription."""
        request = msgspec.structs.replace(
            self.request, qos=combined.qos, retain_as_published=combined.retain_as_published, no_local=False
        )
        made = Subscriber(self.session, request, 0, kept=False)
        made.identifiers = combined.identifiers
        made.live = live
        live.join(made)
        return made

    def pump(self) -> None:
        """Deliver waiting messages."""
        for joined in (self.durable, self.live):
            if joined is not None:
                joined.pump()

    def send(
        self,
        subscription: Subscription,
        stored: Stored,
        *,
        qos_max: int,
        identifiers: tuple[int, ...],
        retain: bool,
    ) -> None:
        """Send the messages of a run to the client with this RETAIN flag."""
        write = partial(self._write, subscription, qos_max, identifiers, retain)
        run = stored.run
        if run.flags & AMQP:
            delivery = PendingDelivery(stored, write, partial(self._return_unsent, subscription))
            self.session.start_turn().translate(delivery)
        else:
            if len(run.address) > USUAL_TOPIC_CHARACTERS_MAX:
                self.session.start_turn().write_topics(run)
            write(stored.position, (run,))

    def _return_unsent(self, subscription: Subscription, first: int, last: int) -> None:
        """Return messages that are not sent over this connection to the subscription."""
        if first < 0:
            return
        if self.overlaps and isinstance(subscription, LogSubscription):
            self.session.overlaps.mark_unsent(subscription.log, first, last)
        subscription.settle(self, first, last, DeliveryOutcome.UNANSWERED)

    def _write(
        self,
        subscription: Subscription,
        qos_max: int,
        identifiers: tuple[int, ...],
        retain: bool,
        position: int,
        runs: Sequence[Run],
    ) -> None:
        """Send the MQTT runs of a stored run; its first message is at `position`."""
        session = self.session
        attachment = session.attachment
        if attachment is None:
            raise LookupError(f"{self.name}: delivery without a connection")
        parts: Iterable[tuple[Run, int]] = zip(runs, repeat(qos_max), strict=False)
        if qos_max < 2 and self.kept and session.resuming and isinstance(subscription, LogSubscription):
            parts = self._resumed(subscription, qos_max, position, runs)
        for run, qos_most in parts:
            last = position + len(run.bodies) - 1
            unexpired = session.lifetime.remaining(run) if EXPIRY_IDENTIFIER in run.properties else run
            had: Sequence[int] = ()
            if unexpired is None:
                if position >= 0:
                    subscription.settle(self, position, last, self._outcome_of_expired(subscription))
                    position = last + 1
                continue
            qos = min(unexpired.flags & QOS_MASK, qos_most)
            token = DeliveryRef(subscription, position, self)
            if qos == 2 and self.kept and isinstance(subscription, LogSubscription):
                delivery = MqttDelivery(unexpired, qos, retain, token, identifiers, kept=True)
                had, too_large = session.journal.deliver(attachment.connection, delivery, subscription.log, position)
                for i in had:
                    subscription.settle(self, position + i, position + i, DeliveryOutcome.ACCEPTED)
            else:
                too_large = attachment.connection.deliver(MqttDelivery(unexpired, qos, retain, token, identifiers))
            session.count_sent(len(unexpired.bodies) - len(too_large) - len(had))
            if position < 0:
                continue
            for i in too_large:  # not sent [MQTT-3.1.2-24]: another consumer may accept it
                subscription.settle(self, position + i, position + i, DeliveryOutcome.TOO_LARGE)
            if qos == 0:
                subscription.settle(self, position, last, DeliveryOutcome.ACCEPTED)
            position = last + 1
        attachment.flush_soon()

    def _outcome_of_expired(self, subscription: Subscription) -> DeliveryOutcome:
        """Return the outcome of a message that has expired since its queue delivered it. The queue drops and reports
        it, unless it keeps messages for longer than they say."""
        queue = subscription if self.kind.is_queue and isinstance(subscription, LogSubscription) else None
        drops = queue is not None and queue.policy.ttl_min_s is None
        return DeliveryOutcome.UNANSWERED if drops else DeliveryOutcome.ACCEPTED

    def _resumed(
        self, subscription: LogSubscription, qos_max: int, position: int, runs: Sequence[Run]
    ) -> Iterator[tuple[Run, int]]:
        """Yield each message with its maximum QoS. An exchange that a restart interrupted resumes at QoS 2.

        That holds also after the QoS of the subscription has changed: the client may have processed the message.
        """
        for run in runs:
            for i in range(len(run.bodies)):
                resumes = self.session.journal.resumes(subscription.log, position + i)
                yield run.part(i, i + 1), 2 if resumes else qos_max
            position += len(run.bodies)


class DeliveryRef(NamedTuple):
    """Reference from a delivery to its subscription and position."""

    subscription: Subscription
    position: int
    subscriber: Subscriber


class SessionContext(NamedTuple):
    """Objects that all sessions of one broker share."""

    translator: MqttTranslator
    lifetime: Lifetime
    figures: MessageCounts
    """Counts sent messages."""
    journal_changed: Callable[[MqttSession], None]
    """Called when the journal of a session has to be written."""


class MqttSession:
    """One session.

    Parts that only some sessions need are created on first use, as 10 000 sessions may be idle.
    """

    __slots__ = (
        "_common", "_journal", "_overlaps", "_retained", "_starved", "_subscribers", "attachment", "client_id",
        "counted", "ended", "expires_at", "expiry_s", "recorded", "sent", "state", "turn", "user", "will_due",
    )  # fmt: skip

    def __init__(self, client_id: str, common: SessionContext) -> None:
        self.client_id = client_id
        self._common = common
        self.turn: DeliveryBudget | None = None
        """Budget of deliveries in one turn of the loop; None while it is not needed."""
        self.state = SessionState()
        self.user = ""
        """Owner of the session; empty: any client with its identifier."""
        self.counted = 0
        """Size that counts against the quota of its user (`NameQuotas`)."""
        self.expiry_s = 0
        self.sent = 0
        """Messages sent over the current connection."""
        self.recorded = False
        """True if it has a record on disk."""
        self.ended = False
        """True after its end. Another session may have its client identifier then."""
        self._subscribers: dict[str, Subscriber] | None = None
        self.attachment: AttachedConnection | None = None
        self.expires_at: float | None = None
        """End of the session (monotonic seconds); None while connected, or without an end."""
        self.will_due: tuple[float, Will] | None = None
        """A delayed Will Message and when to publish it (MQTT 5 section 3.1.3.2.2)."""
        self._starved: dict[Subscriber, None] | None = None
        """Subscribers that had no credit when the router wanted to deliver."""
        self._retained: RetainedDelivery | None = None
        self._journal: Qos2Journal | None = None
        self._overlaps: Overlaps | None = None

    def count_sent(self, messages: int) -> None:
        """Count sent messages, of this client and of all."""
        self.sent += messages
        self._common.figures.sent += messages

    @property
    def lifetime(self) -> Lifetime:
        """Message expiry."""
        return self._common.lifetime

    @property
    def due_at(self) -> float | None:
        """Time of the next check while the client is disconnected (monotonic seconds); None: never."""
        times = [at for at in (self.expires_at, self.will_due and self.will_due[0]) if at is not None]
        return min(times, default=None)

    @property
    def subscribers(self) -> dict[str, Subscriber]:
        """Subscribers by filter. To read them use `all_subscribers`, which creates no dictionary for idle clients."""
        if self._subscribers is None:
            self._subscribers = {}
        return self._subscribers

    @property
    def all_subscribers(self) -> Collection[Subscriber]:
        """All subscribers."""
        return () if self._subscribers is None else self._subscribers.values()

    @property
    def journal(self) -> Qos2Journal:
        """QoS 2 exchanges that are stored on disk."""
        if self._journal is None:
            self._journal = Qos2Journal(self.state, lambda: self._common.journal_changed(self))
        return self._journal

    @property
    def resuming(self) -> bool:
        """True while QoS 2 exchanges that a restart interrupted have not resumed."""
        return self._journal is not None and self._journal.resuming

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps of its subscriptions."""
        if self._overlaps is None:
            self._overlaps = Overlaps(self.client_id, self.subscribers)
        return self._overlaps

    @property
    def durable(self) -> bool:
        """True if the session outlives its connection."""
        return self.expiry_s > 0

    @property
    def idle(self) -> bool:
        """True if the client is disconnected and only subscriptions and `SessionState.incoming` have to be kept."""
        if self.attachment is not None or self.will_due is not None or not self.recorded:
            return False
        return self.state.idle and (self._journal is None or self._journal.idle)

    def acknowledged(
        self, messages: Iterable[tuple[MqttDelivery, int]], outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED
    ) -> None:
        """Settle deliveries that the client has acknowledged, as ranges, then deliver more."""
        last_delivery: MqttDelivery | None = None
        settled: object = None
        first = last = -2
        for delivery, i in messages:
            if delivery.token is settled:
                continue  # part of a live batch, which needs no settlement
            if isinstance(delivery.token, DeliveryRef) and delivery.token.position == SETTLED:
                settled = delivery.token
                continue
            if delivery is last_delivery and i == last + 1:
                last = i
                continue
            if last_delivery is not None:
                self._settle(last_delivery, first, last, outcome)
            last_delivery, first, last = delivery, i, i
        if last_delivery is not None:
            self._settle(last_delivery, first, last, outcome)
        self.pump_starved()

    def _settle(self, delivery: MqttDelivery, first: int, last: int, outcome: DeliveryOutcome) -> None:
        token = delivery.token
        if isinstance(token, DeliveryRef):
            if token.position >= 0:
                position = token.position
                token.subscription.settle(token.subscriber, position + first, position + last, outcome)
                if delivery.kept and isinstance(token.subscription, LogSubscription):
                    if outcome is DeliveryOutcome.ACCEPTED:
                        self.journal.completed(token.subscription.log, position + first, position + last)
                    else:
                        self.journal.aborted()
        elif isinstance(token, ReleasedMessage):
            self.journal.recovered_completed(token)

    def pump_starved(self) -> None:
        """Serve the subscribers that had no credit."""
        self._send_retained()
        if self._starved is not None:
            starved, self._starved = self._starved, None
            for subscriber in starved:
                subscriber.pump()

    def pump(self) -> None:
        """Serve all subscriptions, after a connect."""
        self._send_retained()
        merged_subscribers = () if self._overlaps is None else self._overlaps.merged_subscribers()
        for subscriber in [*self.all_subscribers, *merged_subscribers]:
            subscriber.pump()

    def release_group(self, *, ended: bool, lost: bool = False) -> None:
        """Release in-flight messages that other members of a group may get, before leaving the subscriptions.

        QoS 2 messages stay with this client while its session lives [MQTT-4.8.2-4]. Those of a shared subscription go
        to no other client when the session ends [MQTT-4.8.2-5], as the receiver may have processed them. `lost`: an
        unanswered message may have crashed the client, so it counts as a delivery attempt.
        """
        undelivered = DeliveryOutcome.LOST if lost else DeliveryOutcome.UNANSWERED
        state = self.state
        if not state.in_flight:
            return
        for packet_id, (delivery, i) in [*state.outgoing.items(), *state.released.items()]:
            token = delivery.token
            if not isinstance(token, DeliveryRef) or not token.subscriber.competes or token.position < 0:
                continue
            position = token.position + i
            received = packet_id in state.released
            stored = isinstance(token.subscription, LogSubscription)
            if not received and (delivery.qos == 1 or not stored):
                del state.outgoing[packet_id]
                if stored:  # others are redistributed when the subscription is left
                    token.subscription.settle(token.subscriber, position, position, undelivered)
            elif ended:
                done = received or token.subscriber.shared
                outcome = DeliveryOutcome.ACCEPTED if done else undelivered
                token.subscription.settle(token.subscriber, position, position, outcome)
            elif lost and not received and isinstance(token.subscription, LogSubscription):
                if token.subscription.keeps_after_loss(token.subscriber, position):
                    continue
                del state.outgoing[packet_id]
                state.awaiting_commit.pop(packet_id, None)
                self.journal.aborted()

    def deliver_retained(self, subscriber: Subscriber, subscription: Subscription, walk: Iterator[Run | None]) -> None:
        """Send the retained messages that `walk` yields (None: a name without one), as window and loop allow."""
        if self._retained is None:
            self._retained = RetainedDelivery()
        self._retained.add(subscriber, subscription, walk)
        self._send_retained()

    def wait_for_credit(self, subscriber: Subscriber) -> None:
        """Serve this subscription when it has credit again."""
        if self._starved is None:
            self._starved = {}
        self._starved[subscriber] = None

    def subscriptions_changed(self, pattern: str) -> None:
        """Update overlaps after the subscription with this filter was created, replaced or removed."""
        if self._overlaps is not None or len(self.all_subscribers) > 1:
            self.overlaps.changed(pattern)

    def start_turn(self) -> DeliveryBudget:
        """Return the budget of this turn of the loop."""
        if self.turn is None:
            if self.attachment is None:
                raise LookupError(f"{self.client_id}: delivery without a connection")
            self.turn = DeliveryBudget(self._common.translator, self.attachment.continue_soon)
        return self.turn

    def leave(self) -> None:
        """Drop pending deliveries of a closed connection. Retained messages are not resumed on a new one."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()
        self._starved = None
        self._retained = None

    def dispose(self) -> None:
        """Break reference cycles of an unused session, so that it is freed at once."""
        self._subscribers = self._overlaps = self._journal = None

    def clear_merged(self) -> None:
        """Leave the merged live subscriptions when the client disconnects."""
        if self._overlaps is not None:
            self._overlaps.clear_merged()

    def continue_delivery(self) -> None:
        """Continue deliveries in the next turn of the loop; see `AttachedConnection.continue_soon`."""
        if self._retained is not None:
            self._retained.next_turn()
        if self.turn is not None:
            self.turn.start()
        self.pump_starved()

    def _send_retained(self) -> None:
        if self._retained is not None and self._retained.send(self.subscribers, self._continue_soon):
            self._retained = None

    def _continue_soon(self) -> None:
        if self.attachment is not None:
            self.attachment.continue_soon()
