"""Result of an authentication: the verdict and the verified identity."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from bridge.hidden import hides
from edge.broker.model.authorization import AccessRule


class LoginVerdict(enum.Enum):
    """Result of checking a password or a token."""

    ACCEPTED = "accepted"
    REFUSED = "wrong user name or password"
    ENDED = "the issuer has ended the token"
    """A signed token, which cannot be guessed: it does not count as a failed login of its address."""
    BUSY = "too many passwords to verify, or too many wrong ones"


@hides("text")
class TokenOrigin(NamedTuple):
    """Origin of a token, to find the connections that it has opened."""

    digest: str = ""
    """SHA-256 of a token that the issuer is asked about (RFC 7662), hexadecimal; empty without introspection."""
    subject: str = ""
    """Claim `sub`: the person or client at the issuer."""
    session: str = ""
    """Claim `sid`: session of a person at the issuer; empty without one."""
    issued_at_s: float = 0.0
    """Claim `iat`, UTC seconds by the issuer's clock; 0 without one. Of a person: that of the sign-in."""
    text: bytes = b""
    """The token, to ask the issuer again; empty without introspection."""


class CertifiedIdentity(str):
    """Identity of a device that a certificate has proven. It is never that of a user of this gateway."""

    __slots__ = ()


class VerifiedIdentity(NamedTuple):
    """Identity of an authenticated client, the same for all mechanisms."""

    user: str
    rules: tuple[AccessRule, ...] = ()
    """Rights of the token, in addition to those of the user of this name."""
    expires_at_s: float | None = None
    """UTC seconds; None if it does not expire."""
    secret: str = ""
    """Id of the secret that a password was verified against; empty without a password."""
    login: str = ""
    """Name that a client logged in by; empty where that is the user."""
    origin: TokenOrigin | None = None
    """Origin of the token; None without one."""


Decided = Callable[[LoginVerdict, VerifiedIdentity | None], None]
"""Callback, called once, now or later. The identity is given with ACCEPTED and is None otherwise."""


def renewed_origin(before: TokenOrigin | None, proven: VerifiedIdentity) -> VerifiedIdentity:
    """Return a person with renewed tokens, with the session and the time of its sign-in."""
    fresh = proven.origin
    if before is None or fresh is None or before.subject != fresh.subject:
        return proven
    if fresh.session and before.session and fresh.session != before.session:
        return proven
    issued_at_s = min(before.issued_at_s, fresh.issued_at_s)
    return proven._replace(origin=fresh._replace(session=fresh.session or before.session, issued_at_s=issued_at_s))
