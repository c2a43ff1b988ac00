"""Sessions of people in browsers.

A session is a user who has signed in: its rights (`Grant`), until it signs out, is idle for too long, or changes. The
browser holds a token of 256 random bits in a cookie; here only its SHA-256 is kept, in memory. So a restart ends all
sessions, and reading the memory of the process gives no token.

The table knows neither cookies nor passwords; `edge.broker.http.access` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from bridge.hidden import hides
from edge.broker.http.limits import SESSION_IDLE_S, SESSION_STAY_S, SESSIONS_MAX, SESSIONS_OF_ONE_MAX
from edge.broker.model.authorization import Ended, Grant

_TOKEN_BYTES: Final = 32

MakeGrant = Callable[[Callable[[Ended], None]], Grant | None]
"""Makes the grant of a session, with the callback that ends the session; None if the user does not exist any more."""


class BrowserSession:
    """One session. `BrowserSessions` makes and ends it."""

    __slots__ = ("_requests", "_used_at_s", "grant", "id_token", "idle_s", "key")

    def __init__(self, key: bytes, grant: Grant, idle_s: float, now: float) -> None:
        self.key = key
        """SHA-256 of the token."""
        self.grant = grant
        self.idle_s = idle_s
        """Seconds without a request after which the session ends."""
        self.id_token = ""
        """Token that names the person to the issuer when it signs out; empty unless it signed in there."""
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
        """Note that a request uses the session."""
        self._used_at_s = now

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
        self._most = most
        self._group_of = group_of
        self._by_key: dict[bytes, BrowserSession] = {}
        """Sessions by the SHA-256 of their token."""

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
        key = _key_of(token)
        grant = make_grant(lambda why: self._end(key, why))
        if grant is None:
            return None
        session = BrowserSession(key, grant, SESSION_STAY_S if stays else SESSION_IDLE_S, now)
        mine = [each for each in self if each.user == session.user]
        if len(mine) >= SESSIONS_OF_ONE_MAX:
            self._end_longest_unused(mine, now)
        if len(self) >= self._most:
            of_group = self._with_most(list(self), session, lambda each: self._group_of(each.user))
            self._end_longest_unused(self._with_most(of_group, session, lambda each: each.user), now)
        self._by_key[key] = session
        return OpenedSession(token, session)

    def find(self, token: str, now: float) -> BrowserSession | None:
        """Return the session of a token, and note its use; None if it has ended."""
        session = self._by_key.get(_key_of(token))
        if session is None:
            return None
        if session.ends_at_s(now) <= now:
            self.end(session)
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
                self.end(session)

    def _end_longest_unused(self, sessions: Sequence[BrowserSession], now: float) -> None:
        self.end(min(sessions, key=lambda each: each.used_at_s(now)))

    @staticmethod
    def _with_most(
        sessions: Sequence[BrowserSession], new: BrowserSession, owner_of: Callable[[BrowserSession], str]
    ) -> list[BrowserSession]:
        """Return the sessions of the owners with the most, counted with a new one."""
        counts = Counter(owner_of(each) for each in sessions)
        counts[owner_of(new)] += 1
        most = max(counts[owner_of(each)] for each in sessions)
        return [each for each in sessions if counts[owner_of(each)] == most]

    def _end(self, key: bytes, why: Ended) -> None:
        session = self._by_key.pop(key, None)
        if session is not None:
            self._release(session.grant)
            session.end(why)


def _key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
