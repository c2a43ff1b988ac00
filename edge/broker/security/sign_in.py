"""Interfaces of an issuer: tokens of programs, and sign-ins of people with their results."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from bridge.hidden import hides
from edge.broker.configuration import TokenIssuer
from edge.broker.security.proof import Decided, VerifiedIdentity
from edge.broker.security.sign_outs import EndedSignIn


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


@hides("refresh_token", "id_token")
class SignedInPerson(NamedTuple):
    """Verified person, and the token with which the issuer is asked again; empty if it gave none."""

    proven: VerifiedIdentity
    refresh_token: str = ""
    id_token: str = ""
    """Names the person to the issuer when it signs out."""


class PersonSignIn(Protocol):
    """Sign-ins of people at one issuer. Every method raises `SignInFailed`."""

    @property
    def configuration(self) -> TokenIssuer:
        """Return the issuer."""
        ...

    async def address(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return the address at the issuer where a person signs in."""
        ...

    async def exchange(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> SignedInPerson:
        """Return the person of a code."""
        ...

    async def renew(self, refresh_token: str) -> SignedInPerson:
        """Return the person again, with the rights that the issuer gives it now."""
        ...

    async def ended_sign_in(self, logout_token: bytes) -> EndedSignIn:
        """Return the sign-in that a logout token of the issuer ends."""
        ...

    def sign_out_address(self, id_token: str, leads_to: str) -> str | None:
        """Return the address at the issuer that ends the person's session there, and then leads back; None if the
        issuer has none. Raises nothing."""
        ...


class BearerVerifier(Protocol):
    """Verifies bearer tokens."""

    @property
    def issuer(self) -> str:
        """Return the identifier of the issuer."""
        ...

    @property
    def code_flow(self) -> PersonSignIn | None:
        """Return the sign-in of people; None if none is configured."""
        ...

    def check(self, token: bytes, decided: Decided, source: str = "") -> None:
        """Call `decided` once: at once, or after the issuer has answered. `source`: address of the client."""
        ...
