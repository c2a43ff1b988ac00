"""Sessions of people in browsers.

A session is a user who has signed in: its rights (`Grant`), until it signs out, is idle for too long, or changes. The
browser holds a token of 256 random bits in a cookie; here only its SHA-256 is kept, so reading the memory of the
process gives no token. The table is in memory; `session_keeper` lets sessions outlive a restart.

The table knows neither cookies nor passwords; `edge.broker.http.access` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

from bridge.hidden import hides
from edge.broker.http.limits import SESSION_IDLE_S, SESSION_STAY_S, SESSIONS_MAX, SESSIONS_OF_ONE_MAX
from edge.broker.model.authorization import Ended, Grant

_TOKEN_BYTES: Final = 32

S = TypeVar("S", bound="OwnedSession")


class OwnedSession(Protocol):
    """Session, as far as the limits count it."""

    @property
    def user(self) -> str: ...


MakeGrant = Callable[[Callable[[Ended], None]], Grant | None]
"""Makes the grant of a session, with the callback that ends the session; None if the user does not exist any more."""


class BrowserSession:
    """One session. `BrowserSessions` makes and ends it."""

    __slots__ = ("_requests", "_used_at_s", "grant", "id_token", "idle_s", "key", "sealing_key")

    def __init__(self, key: bytes, grant: Grant, idle_s: float, now: float) -> None:
        self.key = key
        """SHA-256 of the token."""
        self.grant = grant
        self.idle_s = idle_s
        """Seconds without a request after which the session ends."""
        self.id_token = ""
        """Token that names the person to the issuer when it signs out; empty unless it signed in there."""
        self.sealing_key = b""
        """Key of what is kept encrypted of it; empty unless it signed in at an issuer and has shown its token."""
        self._used_at_s = now
        self._requests: set[asyncio.Future[Ended]] = set()

    def signed_in_at_issuer(self, id_token: str) -> None:
        """Keep the newest token that names the person to the issuer; an empty one changes nothing."""
        self.id_token = id_token or self.id_token

    @property
    def user(self) -> str:
        """The user who signed in."""
        return self.grant.user

    @property
    def stays(self) -> bool:
        """True for a session that outlives a night without requests."""
        return self.idle_s > SESSION_IDLE_S

    def used_at_s(self, now: float) -> float:
        """Return the time of the last use. A request in progress uses the session."""
        return now if self._requests else self._used_at_s

    def ends_at_s(self, now: float) -> float:
        """Return when the session ends if no further request uses it."""
        return self.used_at_s(now) + self.idle_s

    def use(self, now: float) -> None:
        """Note a use of the session, by a request or at another node."""
        self._used_at_s = max(self._used_at_s, now)

    @contextmanager
    def serving(self, ended: asyncio.Future[Ended], clock: Callable[[], float]) -> Iterator[None]:
        """Serve a request of this session; `ended` gets its result if the session ends during the request."""
        self._requests.add(ended)
        try:
            yield
        finally:
            self._requests.discard(ended)
            self._used_at_s = clock()

    def end(self, why: Ended) -> None:
        """End the requests in progress."""
        requests, self._requests = self._requests, set()
        for ended in requests:
            if not ended.done():
                ended.set_result(why)


@hides("token")
class OpenedSession(NamedTuple):
    """A new session and its token, which is not kept."""

    token: str
    session: BrowserSession


class BrowserSessions:
    """Table of sessions."""

    def __init__(
        self,
        release: Callable[[Grant], None] = lambda _: None,
        *,
        most: int = SESSIONS_MAX,
        group_of: Callable[[str], str] = str,
    ) -> None:
        """`release` gets the grant of each session that has ended; `most`: sessions at once. `group_of` returns the
        group of a user: groups share the room equally, as do the users of a group."""
        self._release = release
        self._discarded: Callable[[BrowserSession], None] = lambda _: None
        self._most = most
        self._group_of = group_of
        self._by_key: dict[bytes, BrowserSession] = {}
        """Sessions by the SHA-256 of their token."""

    def call_when_discarded(self, discarded: Callable[[BrowserSession], None]) -> None:
        """Call `discarded` for each session that must not come back: it signed out, made room, or its user changed."""
        self._discarded = discarded

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, session: BrowserSession) -> bool:
        return self._by_key.get(session.key) is session

    def __iter__(self) -> Iterator[BrowserSession]:
        return iter(list(self._by_key.values()))

    def open(self, make_grant: MakeGrant, *, stays: bool, now: float) -> OpenedSession | None:
        """Open a session. Return None if the user does not exist any more.

        At the limit of this user its longest unused session ends. At the limit of all it is one of the user with the
        most sessions in the group with the most, counted with the new one: the others keep their share.
        """
        self.end_idle(now)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        key = key_of(token)
        grant = make_grant(lambda why: self._end(key, why))
        if grant is None:
            return None
        session = BrowserSession(key, grant, SESSION_STAY_S if stays else SESSION_IDLE_S, now)
        for each in self._displaced_by(session.user, now):
            self.end(each)
        self._by_key[key] = session
        return OpenedSession(token, session)

    def restore(self, key: bytes, make_grant: MakeGrant, *, stays: bool, used_at_s: float, now: float) -> None:
        """Bring back a session that was kept. Nothing is done if its user does not exist any more, if it is there
        already, or if another one would have to make room."""
        self.end_idle(now)
        if key in self._by_key:
            return
        grant = make_grant(lambda why: self._end(key, why))
        if grant is None:
            return
        if self._displaced_by(grant.user, now):
            self._release(grant)
            return
        self._by_key[key] = BrowserSession(key, grant, SESSION_STAY_S if stays else SESSION_IDLE_S, used_at_s)

    def of_key(self, key: bytes) -> BrowserSession | None:
        """Return the session with this SHA-256 of its token, without noting a use."""
        return self._by_key.get(key)

    def find(self, token: str, now: float) -> BrowserSession | None:
        """Return the session of a token, and note its use; None if it has ended."""
        session = self._by_key.get(key_of(token))
        if session is None:
            return None
        if session.ends_at_s(now) <= now:
            self._end(session.key, Ended.SIGNED_OUT, idle=True)
            return None
        session.use(now)
        return session

    def end(self, session: BrowserSession, why: Ended = Ended.SIGNED_OUT) -> None:
        """End a session, and its requests in progress. Idempotent."""
        self._end(session.key, why)

    def end_idle(self, now: float) -> None:
        """End the sessions that were idle for too long."""
        for session in self:
            if session.ends_at_s(now) <= now:
                self._end(session.key, Ended.SIGNED_OUT, idle=True)

    def _displaced_by(self, user: str, now: float) -> list[BrowserSession]:
        return choose_displaced(
            list(self), user, lambda each: each.used_at_s(now), most=self._most, group_of=self._group_of
        )

    def _end(self, key: bytes, why: Ended, *, idle: bool = False) -> None:
        """End a session. One that is idle, or has an expired token, here may be in use at another node."""
        session = self._by_key.pop(key, None)
        if session is None:
            return
        self._release(session.grant)
        session.end(why)
        if not idle and why is not Ended.EXPIRED:
            self._discarded(session)


def choose_displaced(
    sessions: Sequence[S], user: str, used_at_s: Callable[[S], float], *, most: int, group_of: Callable[[str], str]
) -> list[S]:
    """Return the sessions that have to end for a new one of a user; see `BrowserSessions.open`."""
    left, displaced = list(sessions), list[S]()

    def end_longest_unused(among: Sequence[S]) -> None:
        longest = min(among, key=used_at_s)
        left.remove(longest)
        displaced.append(longest)

    while len(mine := [each for each in left if each.user == user]) >= SESSIONS_OF_ONE_MAX:
        end_longest_unused(mine)
    while len(left) >= most:
        of_group = _with_most(left, group_of(user), lambda each: group_of(each.user))
        end_longest_unused(_with_most(of_group, user, lambda each: each.user))
    return displaced


def _with_most(sessions: Sequence[S], new: str, owner_of: Callable[[S], str]) -> list[S]:
    """Return the sessions of the owners with the most, counted with a new one of an owner."""
    counts = Counter(owner_of(each) for each in sessions)
    counts[new] += 1
    most = max(counts[owner_of(each)] for each in sessions)
    return [each for each in sessions if counts[owner_of(each)] == most]


def key_of(token: str) -> bytes:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
