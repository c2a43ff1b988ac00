"""What a look at somebody's credentials ends with: a verdict, and who was proven to be there."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from edge.broker.model.authorization import AccessRule


class LoginVerdict(enum.Enum):
    """What the gate says to a name and a password, or a token."""

    ACCEPTED = "accepted"
    REFUSED = "wrong user name or password"
    BUSY = "too many passwords to verify, or too many wrong ones"


class VerifiedIdentity(NamedTuple):
    """Who a client has shown to be, by whatever means."""

    user: str
    rules: tuple[AccessRule, ...] = ()
    """What a token allows, beside what the user of this name may do."""
    expires_at_s: float | None = None
    """When that ends, UTC seconds; None for what does not end by itself."""


Decided = Callable[[LoginVerdict, VerifiedIdentity | None], None]
"""Told the verdict once, at once or later; somebody is proven with ACCEPTED and with nothing else."""


class BearerVerifier(Protocol):
    """Verifies bearer tokens."""

    def check(self, token: bytes, decided: Decided) -> None:
        """Call `decided` once: at once, or when the issuer has been asked for its keys."""
        ...
