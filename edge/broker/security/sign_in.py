"""Result of a sign-in at an issuer: the person, or the reason of the failure."""

from __future__ import annotations

import enum
from typing import NamedTuple

from bridge.hidden import hides
from edge.broker.security.proof import VerifiedIdentity


class SignInFault(enum.Enum):
    """Reason why a sign-in at the issuer did not succeed; the page has a sentence for each."""

    DENIED = "denied"
    """The issuer, or the person there, refused."""
    STATE = "state"
    """The answer belongs to no sign-in of this browser: too old, used, or made up."""
    CODE = "code"
    """The issuer does not take the code."""
    TOKEN = "token"  # noqa: S105 - a word
    """The tokens are not valid for this node."""
    ISSUER = "issuer"
    """The issuer cannot be reached, or its answers cannot be used."""


class SignInFailed(Exception):
    """The sign-in failed; the text is for the log."""

    def __init__(self, fault: SignInFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


@hides("id_token", "access_token")
class IssuedTokens(NamedTuple):
    """Tokens of one sign-in."""

    id_token: str
    access_token: str


@hides("refresh_token")
class SignedInPerson(NamedTuple):
    """Verified person, and the token with which the issuer is asked again; empty if it gave none."""

    proven: VerifiedIdentity
    refresh_token: str = ""
