"""Sign-ins that the issuer has ended (OpenID Connect Back-Channel Logout 1.0): their tokens open nothing any more.

A logout names a session at the issuer (`sid`), or a person (`sub`). It covers the tokens of the session, and those of
the person that were issued up to it: all of them without a `sid`, else those that name no session. So a logout that
comes twice, or late, ends no later sign-in. Times are those of the issuer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from edge.broker.security.limits import SIGN_OUTS_KEPT_S, SIGN_OUTS_MAX
from edge.broker.security.proof import TokenOrigin
from edge.broker.security.token_grants import TokenGrants

log = logging.getLogger(__name__)


class SignOutNotKept(Exception):
    """A logout took effect here, and could not be written. The message has the reason and the next step."""


class EndedSignIn(NamedTuple):
    """One logout."""

    subject: str
    """Person at the issuer; empty if only the session is named."""
    session: str
    """Session at the issuer; empty for all sessions of the person."""
    at_s: float
    """Time of the logout at the issuer, UTC seconds."""


class SignOutArchive(Protocol):
    """Keeps logouts over restarts."""

    async def add(self, ended: EndedSignIn) -> None:
        """Keep a logout; it is durable on return. Raises SignOutNotKept."""
        ...


class SignOuts:
    """Logouts that count at this node."""

    def __init__(self, connections: TokenGrants) -> None:
        """`connections`: those that end with their sign-in."""
        self._connections = connections
        self._sessions: dict[str, float] = {}
        """Time of the logout by session, the earliest known first."""
        self._subjects: dict[str, float] = {}
        """The same by person, for logouts of all its sessions."""
        self._sessionless: dict[str, float] = {}
        """The same by person, for logouts of one session: they cover tokens that name no session."""
        self._archive: SignOutArchive | None = None

    def keep_in(self, archive: SignOutArchive) -> None:
        """Keep logouts in an archive from now on. Without one they count until the process ends."""
        self._archive = archive

    def covers(self, origin: TokenOrigin | None) -> bool:
        """Return True for a token of a sign-in that has ended. None: no token."""
        if origin is None:
            return False
        if origin.session in self._sessions:
            return True
        tables = (self._subjects,) if origin.session else (self._subjects, self._sessionless)
        return any(origin.issued_at_s <= table.get(origin.subject, float("-inf")) for table in tables)

    async def add(self, ended: EndedSignIn) -> int:
        """End a sign-in with all that it has opened; return the number of its connections and sessions here.

        Raises SignOutNotKept: it has ended, but may come back after a restart, and at other nodes, until the archive
        has written it.
        """
        count = self.apply([ended])
        if self._archive is not None:
            await self._archive.add(ended)
        return count

    def apply(self, ended: Iterable[EndedSignIn]) -> int:
        """Let logouts count that are kept already; return the number of connections and sessions that they have ended.

        Connections that were opened after a logout was known are none of its sign-in, so known ones end nothing.
        """
        fresh = [self._note(each) for each in ended]
        return self._connections.end(self.covers) if any(fresh) else 0

    def clear(self) -> None:
        """Forget all, for another issuer."""
        self._archive = None
        for table in (self._sessions, self._subjects, self._sessionless):
            table.clear()

    def _note(self, ended: EndedSignIn) -> bool:
        """Return False for a logout that is known."""
        if not ended.session:
            return _put(self._subjects, ended.subject, ended.at_s)
        if ended.subject:
            _put(self._sessionless, ended.subject, ended.at_s)
        return _put(self._sessions, ended.session, ended.at_s)


def _put(table: dict[str, float], name: str, at_s: float) -> bool:
    """Set a time unless a later one is there; return False then."""
    before = table.pop(name, float("-inf"))
    table[name] = max(before, at_s)
    if len(table) > SIGN_OUTS_MAX:
        del table[next(iter(table))]
    return before < at_s


def still_kept(ended: Iterable[EndedSignIn], at_s: float) -> list[EndedSignIn]:
    """Return the newest logouts that are to be kept at a time, UTC seconds; each session or person once."""
    left: dict[tuple[str, str], EndedSignIn] = {}
    for each in ended:
        before = left.pop(each[:2], each)
        if at_s - each.at_s < SIGN_OUTS_KEPT_S:
            left[each[:2]] = max(before, each, key=lambda one: one.at_s)
    return list(left.values())[-SIGN_OUTS_MAX:]
