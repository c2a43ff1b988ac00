"""All MQTT sessions of a broker (MQTT 5 section 4.1).

`SessionRegistry` restores sessions at start, gives a session to a new connection (taking it from an older one), joins
its subscriptions to the router, stores what has to survive, and ends expired sessions. It knows no packets;
`edge.broker.mqtt.handler` processes those of one connection.
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
from edge.broker.model.isolation import call_isolated, report
from edge.broker.model.topics import is_wide
from edge.broker.mqtt.command_topics import subscriber_of
from edge.broker.mqtt.due_sessions import DueSessions
from edge.broker.mqtt.events import SubscriptionRequest, Will
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.mqtt.figures import PREFIX, BrokerFigures, ClientFigures, NetworkFigures
from edge.broker.mqtt.session import AttachedConnection, MqttSession, SessionContext, Subscriber
from edge.broker.mqtt.session_store import SessionRecord, SessionStore
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
"""Prefix of the durable subscription that all members of a shared subscription use."""


READ_RETRY_S = 1.0
"""Pause after a session could not be read from the store."""


class SessionRegistry:
    """All sessions of the broker, by client identifier."""

    def __init__(
        self,
        router: Router,
        store: Store,
        translator: MqttTranslator,
        *,
        legacy_dollar_topics: bool = False,
        network: Callable[[], NetworkFigures] = NetworkFigures,
    ) -> None:
        """`translator` translates AMQP messages to MQTT runs. `network` returns the network figures for `$SYS`.

        `legacy_dollar_topics`: wildcards of MQTT 3.1 clients also match names that begin with ``$``.
        """
        self.legacy_dollar_topics = legacy_dollar_topics
        self.figures = BrokerFigures(router, self._figures, store.totals, network)
        self.lifetime = Lifetime(router.clock)
        self.wills = Wills(router, store.state)
        self.now = 0.0
        """Monotonic seconds at the last `tick`."""
        self._router = router
        self._store = store
        self._left: Callable[[str, bool], None] = _ignore_leave
        self._connected = 0
        self._arriving: dict[str, AttachedConnection] = {}
        """Connections that have taken a session and wait for CONNACK, by client identifier."""
        self._due = DueSessions()
        self._restored = True
        """The expiry of restored sessions does not count yet; it starts with the first tick."""
        self._groups: dict[str, int] = {}
        """Members of each shared subscription, connected or not, by the name of its durable subscription."""
        self._on_disk = SessionStore(store.state, store.commits, router.flush_soon)
        self._common = SessionContext(translator, self.lifetime, router.figures, self._on_disk.journal_changed)
        self._table = SessionTable(router.names, self._new, self._on_disk)
        self._restore_all()
        router.participate(self._on_disk)
        router.address_listeners.add(self._readdress)

    def match_dollar_topics(self, *, legacy: bool) -> None:
        """Set whether wildcards of MQTT 3.1 clients also match names that begin with ``$`` (`legacy`)."""
        self.legacy_dollar_topics = legacy

    def __len__(self) -> int:
        return len(self._table)

    @property
    def connected(self) -> int:
        """Number of connected clients."""
        return self._connected

    def utc_s(self) -> float:
        """Return the time of the broker, UTC seconds."""
        return self._router.now_ns() / 1e9

    def call_when_left(self, left: Callable[[str, bool], None]) -> None:
        """Call `left` with each client that disconnects, and whether its connection was lost (see `leave`)."""
        self._left = left

    @property
    def loaded(self) -> Mapping[str, MqttSession]:
        """Sessions of connected clients and of those that were connected lately, by client identifier."""
        return self._table.opened

    @property
    def idle(self) -> Mapping[str, float | None]:
        """Client identifiers of the other sessions, and when each ends (monotonic seconds; None: never)."""
        return self._table.idle

    def record(self, client_id: str) -> SessionRecord | None:
        """Return the stored record of a session; None without one. Raises StoreError."""
        return self._on_disk.record(client_id)

    def end(self, client_id: str) -> bool:
        """End the session of a client that is not connected. Return False without such a session. Raises StoreError."""
        session = self._table.get(client_id)
        if session is None or session.attachment is not None or client_id in self._arriving:
            return False
        self._end(session)
        return True

    def attached(self) -> list[AttachedConnection]:
        """Return the connections of all clients, also those that wait for CONNACK."""
        joined = [session.attachment for session in self._table.opened.values() if session.attachment is not None]
        return [*joined, *self._arriving.values()]

    def has_room(self, client_id: str, user: str) -> bool:
        """Return True if this client has a session, or `user` may have another one."""
        return self._table.has_room(client_id, user)

    def owner(self, client_id: str) -> str | None:
        """Return the owner of a session, empty without authentication; None without a session."""
        return self._table.user(client_id)

    def take(
        self, client_id: str, attachment: AttachedConnection, *, clean_start: bool, expiry_s: int, user: str = ""
    ) -> tuple[MqttSession, bool]:
        """Give the session of `client_id` to a connection. Return it and whether it existed before.

        `join` joins its subscriptions when CONNACK is sent. An older connection is closed [MQTT-3.1.4-3]; a clean start
        ends the old session [MQTT-3.1.2-4].
        """
        session = self._table.get(client_id)
        before = self._arriving.get(client_id) or (session.attachment if session is not None else None)
        if before is not None:
            _take_over(before, client_id)
        session = self._table.get(client_id)  # the takeover may have ended it
        if session is not None and session.attachment is not None:  # or it has failed to release it
            session.attachment = None
            self._connected -= 1
            call_isolated(f"session {client_id!r}", self._reclaim, session)
        if session is not None and clean_start:
            self._end(session)
            session = None
        present = session is not None
        if session is None:
            session = self._table.make(client_id, user)
        else:
            self._table.mark_connected(session, user)
        session.will_due = None
        session.expires_at = None
        session.expiry_s = expiry_s
        self._arriving[client_id] = attachment
        return session, present

    def save(
        self, session: MqttSession, will: Will | None, origin: Origin, done: Callable[[Refusal | None], None]
    ) -> None:
        """Store a session that a connection has taken, with its will.

        `done` is called after the commit as by `CommitWaits.add`, or at once if nothing has to be written.
        """
        kept = self.wills.keep(session.client_id, will, session.expiry_s, session.user)
        ticket = self._on_disk.save(session) or kept
        if ticket is None:
            done(None)
        else:
            self._router.waits.add(ticket, origin, done)
            self._router.flush_soon()

    def join(self, session: MqttSession) -> None:
        """Join the subscriptions of the session, as its new connection is accepted."""
        session.attachment = self._arriving.pop(session.client_id)
        self.wills.mark_connected(session.client_id)
        session.expires_at = None
        session.sent = 0
        self._connected += 1
        for subscriber in list(session.all_subscribers):
            self._join_again(subscriber)

    def leave(
        self, session: MqttSession, attachment: AttachedConnection, will: Will | None, now: float, *, lost: bool = False
    ) -> None:
        """Detach a closed connection and publish `will`; `lost`: it ended without DISCONNECT.

        Do nothing if another connection has the session.
        """
        if attachment in (session.attachment, self._arriving.get(session.client_id)):
            self._detach(session, now, lost=lost)
            self._left(session.client_id, lost)
            self._schedule_will(session, will, now)
            self._table.drop_large(session)

    def _detach(self, session: MqttSession, now: float, *, lost: bool) -> None:
        """Keep the session of a closed connection for its expiry interval, or end it."""
        if self._restored:
            self._start_expiry(now)
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
            self._pause(session, lost=lost)
        if not self._table.mark_disconnected(session, now):
            log.warning("%s: session ended: its packet identifiers exceed the quota of its user", session.client_id)
            self._end(session)

    def _reclaim(self, session: MqttSession) -> None:
        """Detach a session that its connection has failed to return."""
        session.leave()
        self._pause(session, lost=False)

    def _pause(self, session: MqttSession, *, lost: bool) -> None:
        """Suspend the subscriptions of a disconnected client."""
        session.clear_merged()
        session.release_group(ended=False, lost=lost)
        for subscriber in session.all_subscribers:
            if subscriber.is_drained:
                self._unjoin_durable(subscriber)
            if subscriber.durable is not None:
                self._router.subscriptions.detach(subscriber, subscriber.durable, self._router.now_ns())
            if subscriber.live is not None:
                self._router.subscriptions.unsubscribe(subscriber, subscriber.live, forget=False, keep=True)
                subscriber.live = None

    def _schedule_will(self, session: MqttSession, will: Will | None, now: float) -> None:
        """Publish the will of a disconnected client now, later, or not at all (section 3.1.2.5)."""
        if will is None:
            self.wills.drop(session.client_id)
        elif will.delay_s and session.durable and not session.ended:
            delay = will.delay_s if session.expiry_s == NEVER_EXPIRES else min(will.delay_s, session.expiry_s)
            session.will_due = (now + delay, will)
            self._due.add(session.client_id, session.due_at)
        else:
            self.wills.publish(session.client_id, will, session.user)

    def retained(self, pattern: str) -> Iterator[Run | None]:
        """Yield retained messages (None: a name without one), including the broker's own below `$SYS`."""
        if pattern.startswith(PREFIX):
            return iter(self.figures.matching(pattern))
        kept = self._router.retained.walk(pattern)
        return chain(self.figures.matching(pattern), kept) if is_wide(pattern) else kept

    def expire_after(self, session: MqttSession, expiry_s: int) -> None:
        """Change the session expiry, as a DISCONNECT requests (section 3.14.2.2.2)."""
        session.expiry_s = expiry_s
        if session.durable:
            self._on_disk.save(session)

    def subscribe(self, session: MqttSession, request: SubscriptionRequest, identifier: int) -> tuple[Subscriber, bool]:
        """Add or replace a subscription. Return it and whether it is new. The caller saves. Raises AddressError."""
        old, kept = session.subscribers.get(request.filter), session.durable and request.qos > 0
        if old is not None and old.request.no_local == request.no_local and (old.kept or not kept):
            # only delivery options change: messages in flight and waiting messages are kept
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
        """Remove a subscription; return False without one. The caller saves."""
        subscriber = session.subscribers.pop(pattern, None)
        if subscriber is None:
            return False
        session.subscriptions_changed(pattern)
        self._leave(subscriber, forget=True, finish=True)
        return True

    def drop_forbidden(self, session: MqttSession, grant: Grant) -> None:
        """End the subscriptions that `grant` no longer allows."""
        patterns = [each.request.filter for each in session.all_subscribers]
        for pattern in [each for each in patterns if not grant.may_receive(each)]:
            log.warning("%s: subscription to %s ended: no longer allowed", session.client_id, pattern)
            self.unsubscribe(session, pattern)
            self._on_disk.save(session)

    @property
    def on_disk(self) -> SessionStore:
        """Stored state of the sessions."""
        return self._on_disk

    def tick(self, now: float) -> None:
        """Publish wills that are due and end expired sessions."""
        self.now = now
        self.figures.tick(now)
        self.wills.tick(now)
        if self._restored:
            self._start_expiry(now)
        for client_id in list(islice(iter(partial(self._due.take, now), None), SESSIONS_ENDED_MAX)):
            try:
                self._check(client_id, now)
            except StoreError:
                self._due.add(client_id, now + READ_RETRY_S)
            except Exception as error:
                report(f"session {client_id!r}", "other sessions are not affected", error)
        if self._due.is_outdated(len(self._table)):
            self._due.replace(self._table.due())
        self._table.drop_idle(now)

    def _start_expiry(self, now: float) -> None:
        """Start the expiry of restored sessions."""
        self._restored = False
        self._table.start_expiry(now)
        self._due.replace(self._table.due())

    def _check(self, client_id: str, now: float) -> None:
        """Publish the will of a disconnected client, or end its session, if due. Raises StoreError."""
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
        """Publish the delayed will, if there is one."""
        if session.will_due is not None:
            will, session.will_due = session.will_due[1], None
            self.wills.publish(session.client_id, will, session.user)
        self.wills.end(session.client_id)

    # --- inside -------------------------------------------------------------------------------------------------

    def _new(self, client_id: str) -> MqttSession:
        return MqttSession(client_id, self._common)

    def _restore_all(self) -> None:
        """Restore the sessions of the store. Those with messages in flight become objects."""
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
            if not durable[name].declaration.lapses:  # else it belongs to AMQP: ``share/topic::name``
                self._router.subscriptions.forget(name)  # its members had no durable sessions

    def _join(self, subscriber: Subscriber) -> None:
        """Join a durable subscription for messages that are stored, and a live one for others."""
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
            subscriber.kept = True  # it had a higher QoS: keep it until stored messages are delivered
        if not subscriber.kept:
            subscriber.live = self._router.subscriptions.subscribe(subscriber, pattern, options)
            return
        options = msgspec.structs.replace(options, durable_name=name)
        subscriber.durable = self._router.subscriptions.subscribe(subscriber, pattern, options)
        if not is_topic:
            older = self._router.durable_subscriptions.join_remainder(subscriber, name, shared=share is not None)
            if older is not None:  # its messages come first
                subscriber.durable, subscriber.live = older, subscriber.durable
        else:
            live = SubscribeOptions(qos=0, no_local=request.no_local, qos0_only=True)
            subscriber.live = self._router.subscriptions.subscribe(subscriber, pattern, live)

    def _unjoin(self, subscriber: Subscriber, *, forget: bool, keep: bool) -> None:
        for joined in (subscriber.durable, subscriber.live):
            if joined is not None:
                self._router.subscriptions.unsubscribe(subscriber, joined, forget=forget, keep=keep)

    def _unjoin_durable(self, subscriber: Subscriber) -> None:
        """Stop storing messages for it while its client is disconnected."""
        if subscriber.durable is not None:
            self._router.subscriptions.unsubscribe(subscriber, subscriber.durable, forget=True)
        subscriber.durable, subscriber.kept = None, False

    def _join_again(self, subscriber: Subscriber) -> None:
        """Join; end the subscription if that is not possible, for example at the consumer limit."""
        try:
            self._join(subscriber)
        except AddressError as error:
            session, pattern = subscriber.session, subscriber.request.filter
            log.warning("%s: subscription to %s ended: %s", session.client_id, pattern, error)
            del session.subscribers[pattern]
            session.subscriptions_changed(pattern)
            self._leave_group(subscriber)
            self._on_disk.save(session)

    def _readdress(self) -> None:
        """Join subscriptions again after addresses have changed their type."""
        for session in list(self._table.opened.values()):
            if session.attachment is None:
                continue  # its subscriptions are joined when the client comes back
            try:
                self._readdress_one(session)
            except Exception as error:
                report(f"session {session.client_id!r}", "closing its connection", error)
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
        """Join a shared subscription, which is always durable.

        So messages that one member does not acknowledge are stored for the others (MQTT 5 section 4.8.2).
        """
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
        """Remove a member; return False if other members remain, connected or not."""
        share, pattern = _split_share(subscriber.request.filter)
        if share is None:
            return True
        name = _group_name(share, pattern)
        left = self._groups.pop(name, 1) - 1
        if left:
            self._groups[name] = left
        return not left

    def _leave(self, subscriber: Subscriber, *, forget: bool, finish: bool = False) -> None:
        """Leave a subscription.

        `finish`: the connected client completes its messages in flight [MQTT-3.10.4-3], as it may have received a QoS 2
        message, which no other client must get.
        """
        last = self._leave_group(subscriber)
        keep = finish and not (subscriber.shared and forget and last)
        self._unjoin(subscriber, forget=forget and last, keep=keep)
        if forget and last and subscriber.durable is None:
            # restored, without a connection since: the durable subscription may exist without being joined
            name = _durable_name(subscriber.session, *_split_share(subscriber.request.filter))
            if name in self._router.durable_subscriptions:
                self._router.subscriptions.forget(name)

    def _end(self, session: MqttSession, *, lost: bool = False) -> None:
        """End a session and delete its state; a delayed will is published (section 3.1.3.2.2). `lost`: see `leave`."""
        self._on_disk.forget(session)
        self._table.remove(session)
        self._publish_will(session)
        session.release_group(ended=True, lost=lost)
        session.clear_merged()
        for subscriber in session.all_subscribers:
            self._leave(subscriber, forget=True)
        session.subscribers.clear()


def _ignore_leave(_client_id: str, _lost: bool) -> None:
    """Do nothing: no caller follows the clients."""


def _take_over(attachment: AttachedConnection, client_id: str) -> None:
    """Close an older connection. An error must not affect the new one."""
    try:
        attachment.taken_over()
    except Exception as error:
        report(f"session {client_id!r}", "aborting its older connection", error)
        attachment.abort()


def _split_share(pattern: str) -> tuple[str | None, str]:
    """Return share name (None: not shared) and filter."""
    if not pattern.startswith(SHARE_PREFIX):
        return None, pattern
    share, _, rest = pattern[len(SHARE_PREFIX) :].partition("/")
    return share, rest


def _group_name(share: str, pattern: str) -> str:
    return f"{GROUP_PREFIX}{share}/{pattern}"


def durable_name(client_id: str, pattern: str) -> str:
    """Return the name of the durable subscription of a client for a filter that is not shared."""
    return f"mqtt/{client_id}/{pattern}"


def _durable_name(session: MqttSession, share: str | None, pattern: str) -> str:
    """Return the name of the durable subscription of a session for a filter."""
    return _group_name(share, pattern) if share is not None else durable_name(session.client_id, pattern)


def _pending(session: MqttSession, cursors: Mapping[tuple[str, int], CursorRecord]) -> Callable[[int, int], bool]:
    """Return a function that is True if a subscription of the client has not settled (log, position).

    `cursors`: by name and log.
    """
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
