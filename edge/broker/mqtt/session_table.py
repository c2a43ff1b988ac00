"""All MQTT sessions by client identifier: objects of those in use, and rows of the store for the others.

A session with an absent client becomes its rows after some seconds, once nothing is in flight to it. Memory then holds
its client identifier and its end. `get` makes an object of the rows again. Sessions are counted for their users.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from edge.broker.limits import SESSION_REST_S, SESSIONS_AWAY_MAX, SESSIONS_LOOKED_AT_MAX, SUBSCRIPTIONS_OPEN_MAX
from edge.broker.mqtt.command_topics import subscriber_of
from edge.broker.mqtt.session import MqttSession
from edge.broker.mqtt.session_store import SessionRecord, SessionStore
from edge.broker.retention.names import NameKind, NameQuotas

NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry interval that means: for ever (MQTT 5 section 3.1.2.11.2)."""


class SessionTable:
    """See the module's docstring."""

    def __init__(self, names: NameQuotas, new: Callable[[str], MqttSession], on_disk: SessionStore) -> None:
        """`new` makes an object."""
        self.opened: dict[str, MqttSession] = {}
        """Those that are objects (outside only to be looked at)."""
        self._rows: dict[str, float | None] = {}
        """Client identifiers of the others, and when each session ends (monotonic seconds; None: never)."""
        self._subscriptions_in_rows = 0
        self._away: dict[str, float] = {}
        """Objects whose clients are away, and since when (monotonic seconds)."""
        self._looking: Iterator[str] = iter(())
        self._names = names
        self._new = new
        self._on_disk = on_disk

    def __len__(self) -> int:
        return len(self.opened) + len(self._rows)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.opened or client_id in self._rows

    @property
    def subscriptions(self) -> int:
        """Number of subscriptions of all sessions."""
        return sum(len(each.all_subscribers) for each in self.opened.values()) + self._subscriptions_in_rows

    def user(self, client_id: str) -> str | None:
        """Return the user of a session; None if the client has no session. Raises StoreError."""
        session = self.opened.get(client_id)
        if session is not None:
            return session.user
        record = self._on_disk.record(client_id) if client_id in self._rows else None
        return None if record is None else record.user

    def has_room(self, client_id: str, user: str) -> bool:
        """Return True when this client has a session, or `user` may have another one."""
        return client_id in self or self._names.has_room(NameKind.SESSION, user, len(client_id))

    def get(self, client_id: str) -> MqttSession | None:
        """Return the session of a client, an object from now on; None if it is not found. Raises StoreError."""
        if client_id not in self._rows:
            return self.opened.get(client_id)
        record, incoming = self._on_disk.record(client_id), self._on_disk.incoming_of(client_id)
        if record is None:  # another program has deleted it
            del self._rows[client_id]
            return None
        self._subscriptions_in_rows -= len(record.subscriptions)
        return self._reopen(client_id, record, incoming, self._rows.pop(client_id))

    def make(self, client_id: str, user: str) -> MqttSession:
        """Make a session for a client that has none."""
        session = self._open(client_id)
        session.user, session.counted = user, len(client_id)
        self._names.made(NameKind.SESSION, user, session.counted)
        return session

    def restore(self, client_id: str, record: SessionRecord, incoming: bytes, *, in_flight: bool) -> MqttSession | None:
        """Enter a session the store has; return it as an object where something is in flight to it.

        Its end counts from 0 until `begin_at`.
        """
        self._names.made(NameKind.SESSION, record.user, len(client_id) + len(incoming))
        expires_at = None if record.expiry_s == NEVER_EXPIRES else float(record.expiry_s)
        if in_flight:
            return self._reopen(client_id, record, incoming, expires_at)
        self._rows[client_id] = expires_at
        self._subscriptions_in_rows += len(record.subscriptions)
        return None

    def remove(self, session: MqttSession) -> None:
        """Remove a session that has ended."""
        if self.opened.get(session.client_id) is session:
            del self.opened[session.client_id]
            self._away.pop(session.client_id, None)
            self._names.gone(NameKind.SESSION, session.user, session.counted)

    # --- clients that come and go -----------------------------------------------------------------------------

    def came(self, session: MqttSession, user: str) -> None:
        """Note that its client is there, as this user."""
        self._away.pop(session.client_id, None)
        self._count(session, user, len(session.client_id))

    def left(self, session: MqttSession, now: float) -> bool:
        """Note that its client has gone.

        The packet identifiers it keeps count as part of its name; False when its user has no room for them.
        """
        size = len(session.client_id) + 2 * len(session.state.stored)
        if not self._names.has_room(NameKind.SESSION, session.user, size, replaced=session.counted):
            return False
        self._count(session, session.user, size)
        self._away[session.client_id] = now
        return True

    def begin_at(self, now: float) -> None:
        """Count the ends of restored sessions from now."""
        for client_id, expires_at in self._rows.items():
            if expires_at is not None:
                self._rows[client_id] = expires_at + now
        for client_id in self._away:
            session = self.opened[client_id]
            if session.expires_at is not None:
                session.expires_at += now

    def due(self) -> Iterator[tuple[str, float]]:
        """Yield the sessions with absent clients, and when to look at each; not those that need no look."""
        for client_id, expires_at in self._rows.items():
            if expires_at is not None:
                yield client_id, expires_at
        for client_id in self._away:
            at = self.opened[client_id].due_at
            if at is not None:
                yield client_id, at

    def is_due(self, client_id: str, now: float) -> bool:
        """Return True when the session of an absent client may need a look."""
        if client_id not in self._rows:
            return client_id in self._away
        expires_at = self._rows[client_id]
        return expires_at is not None and expires_at <= now

    def let_idle_go(self, now: float) -> None:
        """Drop objects of sessions that have waited long for their clients, some at each tick."""
        began = False
        rest_s = 0.0 if self._many_are_away() else SESSION_REST_S
        for _ in range(SESSIONS_LOOKED_AT_MAX):
            client_id = next(self._looking, None)
            if client_id is None:
                if began or not self._away:
                    return
                self._looking, began = iter(list(self._away)), True
            elif client_id in self._away and now - self._away[client_id] >= rest_s:
                self._let_go(self.opened[client_id])

    def let_large_go(self, session: MqttSession) -> None:
        """Drop the object now if its client is away and it has very many subscriptions.

        A burst of clients leaves more of these than one tick drops.
        """
        away = session.client_id in self._away and self.opened.get(session.client_id) is session
        if away and len(session.all_subscribers) > SUBSCRIPTIONS_OPEN_MAX:
            self._let_go(session)

    # --- inside -----------------------------------------------------------------------------------------------

    def _many_are_away(self) -> bool:
        """Return True when objects of absent clients take much, with their subscriptions."""
        many = 0
        for client_id in self._away:
            many += 1 + len(self.opened[client_id].all_subscribers)
            if many > SESSIONS_AWAY_MAX:
                return True
        return False

    def _open(self, client_id: str) -> MqttSession:
        session = self.opened[client_id] = self._new(client_id)
        return session

    def _reopen(self, client_id: str, record: SessionRecord, incoming: bytes, expires_at: float | None) -> MqttSession:
        """Make an object of what its rows say."""
        session = self._open(client_id)
        session.user, session.expiry_s, session.recorded = record.user, record.expiry_s, True
        session.counted, session.expires_at = len(client_id) + len(incoming), expires_at
        if incoming:
            session.state.restore_incoming(array("H", incoming))
        for request, identifier in record.subscriptions:
            session.subscribers[request.filter] = subscriber_of(session, request, identifier, kept=request.qos > 0)
            session.subscriptions_changed(request.filter)
        self._away[client_id] = 0.0
        return session

    def _count(self, session: MqttSession, user: str, size: int) -> None:
        """Count it for this user, by this size."""
        if (session.user, session.counted) != (user, size):
            self._names.gone(NameKind.SESSION, session.user, session.counted)
            self._names.made(NameKind.SESSION, user, size)
            session.user, session.counted = user, size

    def _let_go(self, session: MqttSession) -> None:
        """Drop the object, if the rows hold all of it."""
        if not self._on_disk.let_go(session):
            return
        client_id = session.client_id
        del self.opened[client_id], self._away[client_id]
        self._rows[client_id] = session.expires_at
        self._subscriptions_in_rows += len(session.all_subscribers)
        session.let_go()
