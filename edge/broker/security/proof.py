"""Result of an authentication: the verdict and the verified identity."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from edge.broker.model.authorization import AccessRule


class LoginVerdict(enum.Enum):
    """Result of checking a password or a token."""

    ACCEPTED = "accepted"
    REFUSED = "wrong user name or password"
    BUSY = "too many passwords to verify, or too many wrong ones"


class TokenOrigin(NamedTuple):
    """Origin of a token, to find the connections that it has opened."""

    digest: str = ""
    """SHA-256 of a token that the issuer is asked about (RFC 7662), hexadecimal; empty without introspection."""
    subject: str = ""
    """Claim `sub`: the person or client at the issuer."""
    session: str = ""
    """Claim `sid`: session of a person at the issuer; empty without one."""
    issued_at_s: float = 0.0
    """Claim `iat`, UTC seconds by the issuer's clock; 0 without one."""


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
