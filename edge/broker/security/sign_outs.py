"""Sign-ins that the issuer has ended (OpenID Connect Back-Channel Logout 1.0): their tokens open nothing any more.

A logout names a session at the issuer (`sid`), or a person (`sub`): then it covers the tokens that were issued up to
it. So a logout that comes twice, or late, ends no later sign-in. Times are those of the issuer.
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

    def covers(self, origin: TokenOrigin) -> bool:
        """Return True for a token of this sign-in."""
        if self.session:
            return origin.session == self.session
        return origin.subject == self.subject and origin.issued_at_s <= self.at_s


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
        self.archive: SignOutArchive | None = None
        """None: logouts count until the process ends."""

    def covers(self, origin: TokenOrigin | None) -> bool:
        """Return True for a token of a sign-in that has ended. None: no token."""
        if origin is None:
            return False
        if origin.session and origin.session in self._sessions:
            return True
        ended_at_s = self._subjects.get(origin.subject) if origin.subject else None
        return ended_at_s is not None and origin.issued_at_s <= ended_at_s

    async def add(self, ended: EndedSignIn) -> int:
        """End a sign-in with all that it has opened; return the number of its connections and sessions here.

        Raises SignOutNotKept: it has ended, but may come back after a restart, and at other nodes.
        """
        count = self.apply([ended])
        if self.archive is not None:
            await self.archive.add(ended)
        return count

    def apply(self, ended: Iterable[EndedSignIn]) -> int:
        """Let logouts count that are kept already; return the number of connections and sessions that they have ended.

        Connections that were opened after a logout was known are none of its sign-in, so known ones end nothing.
        """
        fresh = [each for each in ended if self._note(each)]
        if not fresh:
            return 0
        return self._connections.end(lambda origin: any(each.covers(origin) for each in fresh))

    def _note(self, ended: EndedSignIn) -> bool:
        """Return False for a logout that is known."""
        table, name = (self._sessions, ended.session) if ended.session else (self._subjects, ended.subject)
        before = table.get(name)
        if before is not None and before >= ended.at_s:
            return False
        table.pop(name, None)
        table[name] = ended.at_s
        if len(table) > SIGN_OUTS_MAX:
            del table[next(iter(table))]
        return True


def still_kept(ended: Iterable[EndedSignIn], at_s: float) -> list[EndedSignIn]:
    """Return the newest logouts that are to be kept at a time, UTC seconds."""
    left = [each for each in ended if at_s - each.at_s < SIGN_OUTS_KEPT_S]
    return left[-SIGN_OUTS_MAX:]
