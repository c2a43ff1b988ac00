"""All MQTT sessions by client identifier: objects for those in use, rows of the store for idle ones.

The object of a disconnected client is dropped after some seconds, once nothing is in flight. Memory then keeps only its
client identifier and expiry. `get` loads the object again. Sessions count against the quotas of their users.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping

from edge.broker.limits import SESSION_LINGER_S, SESSIONS_AWAY_MAX, SESSIONS_CHECKED_MAX, SUBSCRIPTIONS_OPEN_MAX
from edge.broker.mqtt.command_topics import subscriber_of
from edge.broker.mqtt.session import MqttSession
from edge.broker.mqtt.session_store import SessionRecord, SessionStore
from edge.broker.retention.names import NameKind, NameQuotas

NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry interval without an end (MQTT 5 section 3.1.2.11.2)."""


class SessionTable:
    """Sessions by client identifier, loaded or idle."""

    def __init__(self, names: NameQuotas, new: Callable[[str], MqttSession], on_disk: SessionStore) -> None:
        """`new` creates a session object."""
        self.opened: dict[str, MqttSession] = {}
        """Loaded sessions; read-only for other modules."""
        self._rows: dict[str, float | None] = {}
        """Client identifiers of idle sessions, and when each ends (monotonic seconds; None: never)."""
        self._subscriptions_in_rows = 0
        self._away: dict[str, float] = {}
        """Loaded sessions of disconnected clients, and since when (monotonic seconds)."""
        self._scan: Iterator[str] = iter(())
        self._names = names
        self._new = new
        self._on_disk = on_disk

    def __len__(self) -> int:
        return len(self.opened) + len(self._rows)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.opened or client_id in self._rows

    @property
    def idle(self) -> Mapping[str, float | None]:
        """Client identifiers of idle sessions, and when each ends (monotonic seconds; None: never)."""
        return self._rows

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
        """Return the session of a client, loading it if it is idle; None if it is not found. Raises StoreError."""
        if client_id not in self._rows:
            return self.opened.get(client_id)
        record, incoming = self._on_disk.record(client_id), self._on_disk.incoming_of(client_id)
        if record is None:  # deleted by another program
            del self._rows[client_id]
            return None
        self._subscriptions_in_rows -= len(record.subscriptions)
        return self._reopen(client_id, record, incoming, self._rows.pop(client_id))

    def make(self, client_id: str, user: str) -> MqttSession:
        """Create a session for a client without one."""
        session = self._open(client_id)
        session.user, session.counted = user, len(client_id)
        self._names.add(NameKind.SESSION, user, session.counted)
        return session

    def restore(self, client_id: str, record: SessionRecord, incoming: bytes, *, in_flight: bool) -> MqttSession | None:
        """Add a session of the store. Load and return it if messages are in flight to it.

        Its expiry counts from 0 until `start_expiry`.
        """
        self._names.add(NameKind.SESSION, record.user, len(client_id) + len(incoming))
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
            self._names.remove(NameKind.SESSION, session.user, session.counted)

    # --- connected and disconnected clients ---------------------------------------------------------------------

    def mark_connected(self, session: MqttSession, user: str) -> None:
        """Mark the client as connected, as this user."""
        self._away.pop(session.client_id, None)
        self._count(session, user, len(session.client_id))

    def mark_disconnected(self, session: MqttSession, now: float) -> bool:
        """Mark the client as disconnected.

        Its unreleased packet identifiers count against the quota of the user. Return False if they exceed it.
        """
        size = len(session.client_id) + 2 * len(session.state.stored)
        if not self._names.has_room(NameKind.SESSION, session.user, size, replaced=session.counted):
            return False
        self._count(session, session.user, size)
        self._away[session.client_id] = now
        return True

    def start_expiry(self, now: float) -> None:
        """Start the expiry of restored sessions."""
        for client_id, expires_at in self._rows.items():
            if expires_at is not None:
                self._rows[client_id] = expires_at + now
        for client_id in self._away:
            session = self.opened[client_id]
            if session.expires_at is not None:
                session.expires_at += now

    def due(self) -> Iterator[tuple[str, float]]:
        """Yield the sessions of disconnected clients that have to be checked, and when."""
        for client_id, expires_at in self._rows.items():
            if expires_at is not None:
                yield client_id, expires_at
        for client_id in self._away:
            at = self.opened[client_id].due_at
            if at is not None:
                yield client_id, at

    def is_due(self, client_id: str, now: float) -> bool:
        """Return True if the session of a disconnected client may have to be checked."""
        if client_id not in self._rows:
            return client_id in self._away
        expires_at = self._rows[client_id]
        return expires_at is not None and expires_at <= now

    def drop_idle(self, now: float) -> None:
        """Drop objects of sessions without a client for some time, a few at each tick."""
        restarted = False
        rest_s = 0.0 if self._many_are_away() else SESSION_LINGER_S
        for _ in range(SESSIONS_CHECKED_MAX):
            client_id = next(self._scan, None)
            if client_id is None:
                if restarted or not self._away:
                    return
                self._scan, restarted = iter(list(self._away)), True
            elif client_id in self._away and now - self._away[client_id] >= rest_s:
                self._unload(self.opened[client_id])

    def drop_large(self, session: MqttSession) -> None:
        """Drop the object of a disconnected client at once if it has very many subscriptions.

        A burst of clients may leave more of these than one tick drops.
        """
        away = session.client_id in self._away and self.opened.get(session.client_id) is session
        if away and len(session.all_subscribers) > SUBSCRIPTIONS_OPEN_MAX:
            self._unload(session)

    # --- inside -------------------------------------------------------------------------------------------------

    def _many_are_away(self) -> bool:
        """Return True if loaded sessions of disconnected clients take much memory, with their subscriptions."""
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
        """Load an object from its rows."""
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
        """Count the session with this size against the quota of this user."""
        if (session.user, session.counted) != (user, size):
            self._names.remove(NameKind.SESSION, session.user, session.counted)
            self._names.add(NameKind.SESSION, user, size)
            session.user, session.counted = user, size

    def _unload(self, session: MqttSession) -> None:
        """Drop the object if the rows contain all of it."""
        if not self._on_disk.unload(session):
            return
        client_id = session.client_id
        del self.opened[client_id], self._away[client_id]
        self._rows[client_id] = session.expires_at
        self._subscriptions_in_rows += len(session.all_subscribers)
        session.dispose()
