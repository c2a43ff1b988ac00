"""All MQTT sessions by client identifier: objects of those in use, packed the others, and counted for their users.

A session is packed some seconds after its client has gone, once nothing is in flight to it (`resting_sessions`), and an
object again for who asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from edge.broker.limits import SESSION_REST_S, SESSIONS_AWAY_MAX, SESSIONS_LOOKED_AT_MAX, SUBSCRIPTIONS_OPEN_MAX
from edge.broker.mqtt.command_topics import subscriber_of
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.resting_sessions import RestingSession, RestingSessions
from edge.broker.mqtt.session import Session, Subscriber
from edge.broker.retention.names import NameKind, NameQuotas

NEVER_EXPIRES = 0xFFFF_FFFF
"""Session expiry interval that means: for ever (MQTT 5 section 3.1.2.11.2)."""


class SessionTable:
    """See the module's docstring."""

    def __init__(self, names: NameQuotas, new: Callable[[str], Session], let_go: Callable[[Session], bool]) -> None:
        """`new` makes an object; `let_go` says that one is of no use any more, False when it is."""
        self.opened: dict[str, Session] = {}
        """Those that are objects (outside only to be looked at)."""
        self._resting = RestingSessions()
        self._away: dict[str, float] = {}
        """Objects whose clients are away, and since when (monotonic seconds)."""
        self._looking: Iterator[str] = iter(())
        self._names = names
        self._new = new
        self._let_go = let_go

    def __len__(self) -> int:
        return len(self.opened) + len(self._resting)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.opened or client_id in self._resting

    @property
    def subscriptions(self) -> int:
        """Of all sessions."""
        return sum(len(each.all_subscribers) for each in self.opened.values()) + self._resting.subscriptions

    def user(self, client_id: str) -> str | None:
        """Whose session it is; None when there is none."""
        session = self.opened.get(client_id)
        return session.user if session is not None else self._resting.user(client_id)

    def has_room(self, client_id: str, user: str) -> bool:
        """There is a session of this client, or `user` may have another one."""
        return client_id in self or self._names.has_room(NameKind.SESSION, user, len(client_id))

    def get(self, client_id: str) -> Session | None:
        """The session of a client, an object from now on where there is one."""
        if client_id not in self._resting:
            return self.opened.get(client_id)
        packed, session = self._resting.take(client_id), self._open(client_id)
        session.counted = len(client_id) + len(packed.incoming)
        session.expires_at = packed.expires_at
        _fill(session, packed)
        self._away[client_id] = 0.0
        return session

    def make(self, client_id: str, user: str) -> Session:
        """A new one; there is none of this client."""
        session = self._open(client_id)
        session.user, session.counted = user, len(client_id)
        self._names.made(NameKind.SESSION, user, session.counted)
        return session

    def restore(self, client_id: str, packed: RestingSession, *, in_flight: bool) -> Session | None:
        """What was on disk; an object where something is in flight to it."""
        size = len(client_id) + len(packed.incoming)
        self._names.made(NameKind.SESSION, packed.user, size)
        if not in_flight:
            self._resting.put(client_id, packed)
            return None
        session = self._open(client_id)
        session.counted, session.expires_at = size, packed.expires_at
        _fill(session, packed)
        self._away[client_id] = 0.0
        return session

    def remove(self, session: Session) -> None:
        """It has ended."""
        if self.opened.get(session.client_id) is session:
            del self.opened[session.client_id]
            self._away.pop(session.client_id, None)
            self._names.gone(NameKind.SESSION, session.user, session.counted)

    # --- clients that come and go -----------------------------------------------------------------------------

    def came(self, session: Session, user: str) -> None:
        """Its client is there, as this user."""
        self._away.pop(session.client_id, None)
        self._count(session, user, len(session.client_id))

    def left(self, session: Session, now: float) -> bool:
        """Its client has gone. The packet identifiers it keeps count as part of its name; False when its user has no
        room for them."""
        size = len(session.client_id) + len(_incoming(session))
        if not self._names.has_room(NameKind.SESSION, session.user, size, replaced=session.counted):
            return False
        self._count(session, session.user, size)
        self._away[session.client_id] = now
        return True

    def begin_at(self, now: float) -> None:
        """The ends of those that were restored count from now."""
        self._resting.begin_at(now)
        for client_id in self._away:
            session = self.opened[client_id]
            if session.expires_at is not None:
                session.expires_at += now

    def over(self, now: float) -> Iterator[str]:
        """Packed ones whose time has come."""
        return self._resting.over(now)

    def pack(self, now: float) -> None:
        """Pack sessions whose clients have been away for a while, some at each tick."""
        began = False
        rest_s = 0.0 if self._many_are_away() else SESSION_REST_S
        for _ in range(SESSIONS_LOOKED_AT_MAX):
            client_id = next(self._looking, None)
            if client_id is None:
                if began or not self._away:
                    return
                self._looking, began = iter(list(self._away)), True
            elif client_id in self._away and now - self._away[client_id] >= rest_s:
                session = self.opened[client_id]
                if self._let_go(session):
                    self._lay_down(session)

    def pack_large(self, session: Session) -> None:
        """Its client has gone: pack it now where it has very many subscriptions, of which a burst leaves more than one
        in a tick."""
        away = session.client_id in self._away and self.opened.get(session.client_id) is session
        if away and len(session.all_subscribers) > SUBSCRIPTIONS_OPEN_MAX and self._let_go(session):
            self._lay_down(session)

    # --- inside -----------------------------------------------------------------------------------------------

    def _many_are_away(self) -> bool:
        """With their subscriptions, which take more than they do."""
        many = 0
        for client_id in self._away:
            many += 1 + len(self.opened[client_id].all_subscribers)
            if many > SESSIONS_AWAY_MAX:
                return True
        return False

    def _open(self, client_id: str) -> Session:
        session = self.opened[client_id] = self._new(client_id)
        return session

    def _count(self, session: Session, user: str, size: int) -> None:
        """It is this user's, and counts by this size among the names."""
        if (session.user, session.counted) != (user, size):
            self._names.gone(NameKind.SESSION, session.user, session.counted)
            self._names.made(NameKind.SESSION, user, size)
            session.user, session.counted = user, size

    def _lay_down(self, session: Session) -> None:
        subscribers: Iterable[Subscriber] = session.all_subscribers
        subscriptions = [(each.request, each.identifiers[0] if each.identifiers else 0) for each in subscribers]
        packed = RestingSession(session.user, session.expiry_s, subscriptions, _incoming(session), session.expires_at)
        del self.opened[session.client_id], self._away[session.client_id]
        self._resting.put(session.client_id, packed)
        session.let_go()


def restored(
    user: str, expiry_s: int, subscriptions: Sequence[tuple[SubscriptionRequest, int]], incoming: bytes
) -> RestingSession:
    """What was on disk of a session. When it ends is counted from 0 (`SessionTable.begin_at`)."""
    expires_at = None if expiry_s == NEVER_EXPIRES else float(expiry_s)
    return RestingSession(user, expiry_s, subscriptions, incoming, expires_at)


def _incoming(session: Session) -> bytes:
    return array("H", sorted(session.state.stored)).tobytes() if session.state.incoming else b""


def _fill(session: Session, packed: RestingSession) -> None:
    session.user, session.expiry_s, session.recorded = packed.user, packed.expiry_s, True
    if packed.incoming:
        session.state.restore_incoming(array("H", packed.incoming))
    for request, identifier in packed.subscriptions:
        session.subscribers[request.filter] = subscriber_of(session, request, identifier, kept=request.qos > 0)
        session.subscriptions_changed(request.filter)
