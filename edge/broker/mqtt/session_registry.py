"""All MQTT sessions of a broker: what is remembered of clients between their connections (MQTT 5 section 4.1).

`SessionRegistry` restores sessions at start, hands a session to a new connection (taking it from an older one), joins
its subscriptions to the router's, keeps on disk what has to survive, and ends sessions that expired. Nothing here knows
packets; `edge.broker.mqtt.handler` answers them, for one connection at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice

import msgspec

from bridge.message import Run
from edge.broker.limits import SESSIONS_ENDED_MAX
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import guarded, report
from edge.broker.model.topics import is_wide
from edge.broker.mqtt.command_topics import subscriber_of
from edge.broker.mqtt.due_sessions import DueSessions
from edge.broker.mqtt.events import SubscriptionRequest, Will
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.mqtt.figures import PREFIX, BrokerFigures, ClientFigures, NetworkFigures
from edge.broker.mqtt.session import AttachedConnection, MqttSession, SessionContext, Subscriber
from edge.broker.mqtt.session_store import SessionStore
from edge.broker.mqtt.session_table import NEVER_EXPIRES, SessionTable
from edge.broker.mqtt.wills import Wills
from edge.broker.router.router import AddressError, Router, SubscribeOptions
from edge.broker.store.contract import Store
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import QUEUE_CURSOR
from edge.broker.store.records import CursorRecord

log = logging.getLogger(__name__)

SHARE_PREFIX = "$share/"
GROUP_PREFIX = "share/"
"""Start of the name of the durable subscription that the members of a shared subscription hold together."""


LOOK_AGAIN_S = 1.0
"""Pause before a session is looked at again that could not be read."""


class SessionRegistry:
    """All sessions of the broker, by client id."""

    def __init__(
        self,
        router: Router,
        store: Store,
        translator: MqttTranslator,
        *,
        legacy_dollar_topics: bool = False,
        network: Callable[[], NetworkFigures] = NetworkFigures,
    ) -> None:
        """`translator` makes MQTT runs of AMQP messages; `network` gives what `$SYS` shows of it.

        `legacy_dollar_topics`: a wildcard of an MQTT 3.1 client matches names that begin with ``$`` too.
        """
        self.legacy_dollar_topics = legacy_dollar_topics
        self.figures = BrokerFigures(router, self._figures, store.totals, network)
        self.lifetime = Lifetime(router.clock)
        self.wills = Wills(router, store.state)
        self.now = 0.0
        """Monotonic seconds at the last `tick`."""
        self._router = router
        self._store = store
        self._connected = 0
        self._arriving: dict[str, AttachedConnection] = {}
        """Connections that have taken the session of this client identifier, and are not accepted yet."""
        self._due = DueSessions()
        self._restored = True
        """How long clients have been away is not counted yet, since the start."""
        self._groups: dict[str, int] = {}
        """Members of each shared subscription, connected or not, by the name of what they hold together."""
        self._on_disk = SessionStore(store.state, store.commits, router.flush_soon)
        self._common = SessionContext(translator, self.lifetime, router.figures, self._on_disk.journal_changed)
        self._table = SessionTable(router.names, self._new, self._on_disk)
        self._restore_all()
        router.participate(self._on_disk)
        router.address_listeners.add(self._readdress)

    def match_dollar_topics(self, *, legacy: bool) -> None:
        """`legacy`: from now on a wildcard of an MQTT 3.1 client matches names that begin with ``$`` too."""
        self.legacy_dollar_topics = legacy

    def __len__(self) -> int:
        return len(self._table)

    @property
    def connected(self) -> int:
        """Clients with a connection."""
        return self._connected

    def attached(self) -> list[AttachedConnection]:
        """The connections clients have, or are about to."""
        joined = [session.attachment for session in self._table.opened.values() if session.attachment is not None]
        return [*joined, *self._arriving.values()]

    def has_room(self, client_id: str, user: str) -> bool:
        """There is a session of this client, or `user` may have another one."""
        return self._table.has_room(client_id, user)

    def owner(self, client_id: str) -> str | None:
        """The user a session belongs to, empty when nobody had to say who he is; None when there is no session."""
        return self._table.user(client_id)

    def take(
        self, client_id: str, attachment: AttachedConnection, *, clean_start: bool, expiry_s: int, user: str = ""
    ) -> tuple[MqttSession, bool]:
        """Give the session of `client_id` to a connection; returns it and whether it was there before. What it
        subscribes to is joined with `join`, when CONNACK goes.

        A connection that had it is taken over [MQTT-3.1.4-3]; a clean start ends the old session [MQTT-3.1.2-4].
        """
        session = self._table.get(client_id)
        before = self._arriving.get(client_id) or (session.attachment if session is not None else None)
        if before is not None:
            _take_over(before, client_id)
        session = self._table.get(client_id)  # the takeover may have ended it
        if session is not None and session.attachment is not None:  # or has failed
            session.attachment = None
            self._connected -= 1
            guarded(f"session {client_id!r}", self._take_back, session)
        if session is not None and clean_start:
            self._end(session)
            session = None
        present = session is not None
        if session is None:
            session = self._table.make(client_id, user)
        else:
            self._table.came(session, user)
        session.will_due = None
        session.expires_at = None
        session.expiry_s = expiry_s
        self._arriving[client_id] = attachment
        return session, present

    def save(
        self, session: MqttSession, will: Will | None, origin: Origin, tell: Callable[[Refusal | None], None]
    ) -> None:
        """Write what is to outlive the connection that has taken the session, with its will; `tell` as
        `CommitWaits.add` does, and at once where nothing is to be written."""
        kept = self.wills.keep(session.client_id, will, session.expiry_s, session.user)
        ticket = self._on_disk.save(session) or kept
        if ticket is None:
            tell(None)
        else:
            self._router.waits.add(ticket, origin, tell)
            self._router.flush_soon()

    def join(self, session: MqttSession) -> None:
        """The connection that has taken the session is accepted: join what the session subscribes to."""
        session.attachment = self._arriving.pop(session.client_id)
        self.wills.back(session.client_id)
        session.expires_at = None
        self._connected += 1
        for subscriber in list(session.all_subscribers):
            self._join_again(subscriber)

    def leave(
        self, session: MqttSession, attachment: AttachedConnection, will: Will | None, now: float, *, lost: bool = False
    ) -> None:
        """The connection is gone, and `will` is to be published; `lost`: without a goodbye. Nothing happens where
        another one has the session."""
        if attachment in (session.attachment, self._arriving.get(session.client_id)):
            self._detach(session, now, lost=lost)
            self._leave_will(session, will, now)
            self._table.let_large_go(session)

    def _detach(self, session: MqttSession, now: float, *, lost: bool) -> None:
        """The client's connection is gone: keep the session for its expiry interval, or end it."""
        if self._restored:
            self._count_from(now)
        joined, session.attachment = session.attachment is not None, None
        if joined:
            self._connected -= 1
        else:
            self._arriving.pop(session.client_id, None)
        session.leave()
        if not session.durable:
            self._end(session, lost=lost)
            return
        if session.expiry_s != NEVER_EXPIRES:
            session.expires_at = now + session.expiry_s
            self._due.add(session.client_id, session.due_at)
        if joined:
            self._leave_for_now(session, lost=lost)
        if not self._table.left(session, now):
            log.warning("%s: its session ends: its user has no room for what it has not released", session.client_id)
            self._end(session)

    def _take_back(self, session: MqttSession) -> None:
        """Its connection has failed to give it back."""
        session.leave()
        self._leave_for_now(session, lost=False)

    def _leave_for_now(self, session: MqttSession, *, lost: bool) -> None:
        """What it subscribes to waits for its client to come back."""
        session.clear_merged()
        session.release_group(ended=False, lost=lost)
        for subscriber in session.all_subscribers:
            if subscriber.owes_nothing:
                self._unjoin_durable(subscriber)
            if subscriber.durable is not None:
                self._router.subscriptions.leave_for_now(subscriber, subscriber.durable, self._router.now_ns())
            if subscriber.live is not None:
                self._router.subscriptions.unsubscribe(subscriber, subscriber.live, forget=False, keep=True)
                subscriber.live = None

    def _leave_will(self, session: MqttSession, will: Will | None, now: float) -> None:
        """Its client has gone: publish the Will Message now, later, or not at all (section 3.1.2.5)."""
        if will is None:
            self.wills.drop(session.client_id)
        elif will.delay_s and session.durable and not session.ended:
            delay = will.delay_s if session.expiry_s == NEVER_EXPIRES else min(will.delay_s, session.expiry_s)
            session.will_due = (now + delay, will)
            self._due.add(session.client_id, session.due_at)
        else:
            self.wills.publish(session.client_id, will, session.user)

    def retained(self, pattern: str) -> Iterator[Run | None]:
        """Retained messages (None: a name without one); those of the broker about itself are made when asked for."""
        if pattern.startswith(PREFIX):
            return iter(self.figures.matching(pattern))
        kept = self._router.retained.walk(pattern)
        return chain(self.figures.matching(pattern), kept) if is_wide(pattern) else kept

    def expire_after(self, session: MqttSession, expiry_s: int) -> None:
        """The client has said anew how long its session outlives the connection (section 3.14.2.2.2)."""
        session.expiry_s = expiry_s
        if session.durable:
            self._on_disk.save(session)

    def subscribe(self, session: MqttSession, request: SubscriptionRequest, identifier: int) -> tuple[Subscriber, bool]:
        """Add or replace a subscription; returns it and whether it is new. The caller saves. Raises AddressError."""
        old, kept = session.subscribers.get(request.filter), session.durable and request.qos > 0
        if old is not None and old.request.no_local == request.no_local and (old.kept or not kept):
            # the same but for how it is delivered: what is in flight stays in flight, what waits goes on waiting
            old.request = request
            old.identifiers = (identifier,) if identifier else ()
            session.subscriptions_changed(request.filter)
            if old.overlaps:
                self._router.forget_routes()
            return old, False
        subscriber = subscriber_of(session, request, identifier, kept=kept)
        if old is not None:
            self._leave(old, forget=False, finish=True)  # no message is lost due to replacing it [MQTT-3.8.4-4]
        try:
            self._join(subscriber)
        except AddressError:
            if session.subscribers.pop(request.filter, None) is not None:
                session.subscriptions_changed(request.filter)
            raise
        session.subscribers[request.filter] = subscriber
        session.subscriptions_changed(request.filter)
        return subscriber, old is None

    def unsubscribe(self, session: MqttSession, pattern: str) -> bool:
        """Remove a subscription; False when there was none. The caller saves."""
        subscriber = session.subscribers.pop(pattern, None)
        if subscriber is None:
            return False
        session.subscriptions_changed(pattern)
        self._leave(subscriber, forget=True, finish=True)
        return True

    def drop_forbidden(self, session: MqttSession, grant: Grant) -> None:
        """End the subscriptions to what may not be received any more."""
        patterns = [each.request.filter for each in session.all_subscribers]
        for pattern in [each for each in patterns if not grant.may_receive(each)]:
            log.warning("%s: subscription to %s ends: not allowed any more", session.client_id, pattern)
            self.unsubscribe(session, pattern)
            self._on_disk.save(session)

    @property
    def on_disk(self) -> SessionStore:
        """What is kept of the sessions."""
        return self._on_disk

    def tick(self, now: float) -> None:
        """Publish delayed wills that are due, end sessions that expired."""
        self.now = now
        self.figures.tick(now)
        self.wills.tick(now)
        if self._restored:
            self._count_from(now)
        for client_id in list(islice(iter(partial(self._due.take, now), None), SESSIONS_ENDED_MAX)):
            try:
                self._look_at(client_id, now)
            except StoreError:
                self._due.add(client_id, now + LOOK_AGAIN_S)
            except Exception as error:
                report(f"session {client_id!r}", "the others go on", error)
        if self._due.is_outdated(len(self._table)):
            self._due.replace(self._table.due())
        self._table.let_idle_go(now)

    def _count_from(self, now: float) -> None:
        """How long the clients of restored sessions have been away counts from our start."""
        self._restored = False
        self._table.begin_at(now)
        self._due.replace(self._table.due())

    def _look_at(self, client_id: str, now: float) -> None:
        """Publish the will of an absent client, or end its session, when it is time. Raises StoreError."""
        session = self._table.get(client_id) if self._table.is_due(client_id, now) else None
        if session is None or session.attachment is not None:
            return
        if session.will_due is not None and session.will_due[0] <= now:
            self._publish_will(session)
        if session.expires_at is not None and session.expires_at <= now:
            self._end(session)
        else:
            self._due.add(client_id, session.due_at)

    def _figures(self) -> ClientFigures:
        return ClientFigures(self.connected, len(self), self._table.subscriptions, self.lifetime)

    def _publish_will(self, session: MqttSession) -> None:
        """Publish the Will Message that waits, if there is one."""
        if session.will_due is not None:
            will, session.will_due = session.will_due[1], None
            self.wills.publish(session.client_id, will, session.user)
        self.wills.end(session.client_id)

    # --- inside -----------------------------------------------------------------------------------------------

    def _new(self, client_id: str) -> MqttSession:
        return MqttSession(client_id, self._common)

    def _restore_all(self) -> None:
        """Enter the sessions the store has; those with deliveries under way are objects."""
        incoming, journals = dict(self._on_disk.incoming()), dict(self._on_disk.journals())
        cursors = {(each.name, each.log): each for each in self._store.cursor_records()} if journals else {}
        for client_id, record in self._on_disk.records():
            received, journal = incoming.pop(client_id, b""), journals.pop(client_id, b"")
            session = self._table.restore(client_id, record, received, in_flight=bool(journal))
            if session is not None:
                session.journal.restore(journal, _pending(session, cursors))
            for request, _ in record.subscriptions:
                self._enter_group(request.filter)
        durable = self._router.durable_subscriptions
        for name in [name for name in durable if name.startswith(GROUP_PREFIX) and name not in self._groups]:
            if not durable[name].declaration.lapses:  # else it is one of AMQP, ``share/topic::name``
                self._router.subscriptions.forget(name)  # its members had no sessions that outlive the broker

    def _join(self, subscriber: Subscriber) -> None:
        """Join what the request asks for: a durable subscription where messages are kept, a live one for the rest."""
        session, request = subscriber.session, subscriber.request
        share, pattern = _split_share(request.filter)
        subscriber.kind = self._router.addresses.type_of(pattern)
        pattern = pattern if share is not None else subscriber.joined_filter
        is_topic = subscriber.kind is AddressType.TOPIC
        subscriber.competes = share is not None or not is_topic
        subscriber.durable = subscriber.live = None
        if share is not None and is_topic:
            self._join_group(subscriber, share, pattern)
            return
        options = SubscribeOptions(qos=request.qos, no_local=request.no_local)
        name = _durable_name(session, share, pattern)
        if share is None and name in self._router.durable_subscriptions:
            subscriber.kept = True  # of a higher QoS before: it goes on until what that was owed is delivered
        if not subscriber.kept:
            subscriber.live = self._router.subscriptions.subscribe(subscriber, pattern, options)
            return
        options = msgspec.structs.replace(options, durable_name=name)
        subscriber.durable = self._router.subscriptions.subscribe(subscriber, pattern, options)
        if not is_topic:
            older = self._router.durable_subscriptions.join_remainder(subscriber, name, shared=share is not None)
            if older is not None:  # what it has comes first
                subscriber.durable, subscriber.live = older, subscriber.durable
        else:
            live = SubscribeOptions(qos=0, no_local=request.no_local, qos0_only=True)
            subscriber.live = self._router.subscriptions.subscribe(subscriber, pattern, live)

    def _unjoin(self, subscriber: Subscriber, *, forget: bool, keep: bool) -> None:
        for joined in (subscriber.durable, subscriber.live):
            if joined is not None:
                self._router.subscriptions.unsubscribe(subscriber, joined, forget=forget, keep=keep)

    def _unjoin_durable(self, subscriber: Subscriber) -> None:
        """Messages wait for it no longer while its client is away."""
        if subscriber.durable is not None:
            self._router.subscriptions.unsubscribe(subscriber, subscriber.durable, forget=True)
        subscriber.durable, subscriber.kept = None, False

    def _join_again(self, subscriber: Subscriber) -> None:
        """As `_join`; a subscription that cannot be any more (there are as many consumers as may be) ends."""
        try:
            self._join(subscriber)
        except AddressError as error:
            session, pattern = subscriber.session, subscriber.request.filter
            log.warning("%s: subscription to %s ends: %s", session.client_id, pattern, error)
            del session.subscribers[pattern]
            session.subscriptions_changed(pattern)
            self._leave_group(subscriber)
            self._on_disk.save(session)

    def _readdress(self) -> None:
        """Addresses may have another type than before: subscriptions to them are what their type says from now on."""
        for session in list(self._table.opened.values()):
            if session.attachment is None:
                continue  # its subscriptions are joined when the client comes back
            try:
                self._readdress_one(session)
            except Exception as error:
                report(f"session {session.client_id!r}", "its connection ends", error)
                session.attachment.abort()

    def _readdress_one(self, session: MqttSession) -> None:
        changed = False
        for subscriber in list(session.all_subscribers):
            kind = self._router.addresses.type_of(_split_share(subscriber.request.filter)[1])
            if kind is not subscriber.kind:
                changed = True
                self._unjoin(subscriber, forget=False, keep=True)
                self._join_again(subscriber)
                session.subscriptions_changed(subscriber.request.filter)
        if changed:
            session.pump()

    def _join_group(self, subscriber: Subscriber, share: str, pattern: str) -> None:
        """A shared subscription is one for all its members, whether their sessions are kept or not: what one leaves
        un-acknowledged is on disk for the others (MQTT 5 section 4.8.2)."""
        name = _group_name(share, pattern)
        qos = subscriber.request.qos
        options = SubscribeOptions(qos=qos, durable_name=name, shared=True, share_name=name)
        subscriber.durable = self._router.subscriptions.subscribe(subscriber, pattern, options)
        live = SubscribeOptions(qos=0, share_name=name, qos0_only=True)
        subscriber.live = self._router.subscriptions.subscribe(subscriber, pattern, live)
        if subscriber.session.subscribers.get(subscriber.request.filter) is not subscriber:
            self._enter_group(subscriber.request.filter)

    def _enter_group(self, subscribed: str) -> None:
        share, pattern = _split_share(subscribed)
        if share is not None:
            name = _group_name(share, pattern)
            self._groups[name] = self._groups.get(name, 0) + 1

    def _leave_group(self, subscriber: Subscriber) -> bool:
        """False when other members of the group remain, connected or not."""
        share, pattern = _split_share(subscriber.request.filter)
        if share is None:
            return True
        name = _group_name(share, pattern)
        left = self._groups.pop(name, 1) - 1
        if left:
            self._groups[name] = left
        return not left

    def _leave(self, subscriber: Subscriber, *, forget: bool, finish: bool = False) -> None:
        """`finish`: the client is there, and what is in flight to it is its to complete [MQTT-3.10.4-3]: it may have a
        QoS 2 message already, and nobody else is to have that as well."""
        last = self._leave_group(subscriber)
        keep = finish and not (subscriber.shared and forget and last)
        self._unjoin(subscriber, forget=forget and last, keep=keep)
        if forget and last and subscriber.durable is None:
            # restored and never connected since: the durable subscription may be there without being joined
            name = _durable_name(subscriber.session, *_split_share(subscriber.request.filter))
            if name in self._router.durable_subscriptions:
                self._router.subscriptions.forget(name)

    def _end(self, session: MqttSession, *, lost: bool = False) -> None:
        """Forget the session and everything kept for it; a delayed will waits no longer (section 3.1.3.2.2). `lost`: as
        of `leave`."""
        self._on_disk.forget(session)
        self._table.remove(session)
        self._publish_will(session)
        session.release_group(ended=True, lost=lost)
        session.clear_merged()
        for subscriber in session.all_subscribers:
            self._leave(subscriber, forget=True)
        session.subscribers.clear()


def _take_over(attachment: AttachedConnection, client_id: str) -> None:
    """End a connection in favour of a new one, which must not suffer from it."""
    try:
        attachment.taken_over()
    except Exception as error:
        report(f"session {client_id!r}", "its older connection ends", error)
        attachment.abort()


def _split_share(pattern: str) -> tuple[str | None, str]:
    """Share name (None: not shared) and filter."""
    if not pattern.startswith(SHARE_PREFIX):
        return None, pattern
    share, _, rest = pattern[len(SHARE_PREFIX) :].partition("/")
    return share, rest


def _group_name(share: str, pattern: str) -> str:
    return f"{GROUP_PREFIX}{share}/{pattern}"


def _durable_name(session: MqttSession, share: str | None, pattern: str) -> str:
    """Of the durable subscription a kept session has with a filter."""
    return _group_name(share, pattern) if share is not None else f"mqtt/{session.client_id}/{pattern}"


def _pending(session: MqttSession, cursors: Mapping[tuple[str, int], CursorRecord]) -> Callable[[int, int], bool]:
    """Whether one of the client's subscriptions has not settled (log, position); `cursors` by name and log."""
    names = {QUEUE_CURSOR}  # a queue's log is its own
    for subscribed in session.subscribers:
        names.add(_durable_name(session, *_split_share(subscribed)))

    def pending(log: int, position: int) -> bool:
        found = (cursors.get((name, log)) for name in names)
        return any(
            record is not None
            and position >= record.position
            and not any(first <= position <= last for first, last in record.acknowledged)
            for record in found
        )

    return pending
