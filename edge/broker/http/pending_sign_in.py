"""A sign-in in progress at an issuer, as the cookie of its browser holds it.

The cookie has one secret. State, nonce and code verifier are made from it, so the answer of the issuer fits only the
browser that began, and the verifier is in no address. Who reads a callback without TLS has both code and verifier, so
an issuer should know consoles by their https addresses only. The node keeps nothing: a sign-in survives a restart, any
hub on the same registry can finish it, and beginning many costs no memory. The browser forgets the cookie after
`OIDC_SIGN_IN_S` and with the answer; that a code counts once is the issuer's duty (RFC 6749 section 4.1.2).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple, Self

from bridge.hidden import hides

_SECRET_BYTES: Final = 32
_PAGE: Final = re.compile(r"#/[\w/?&=%.~+:-]{0,500}", re.ASCII)
"""Part of an address after the ``#`` that a person may come back to."""
_COOKIE: Final = re.compile(r"([\w-]{43})\.([01])\.([\w-]{0,700})", re.ASCII)
"""Secret, `stay` and page in base64url."""


@hides("secret")
class PendingSignIn(NamedTuple):
    """Sign-in of one browser."""

    secret: str
    leads_to: str
    """Page of the console after the sign-in; empty for its first page."""
    stay: bool
    """The session outlives the browser."""

    @classmethod
    def begin(cls, page: str, *, stay: bool) -> Self:
        """Return a new sign-in. A `page` that is none of the console is not kept."""
        return cls(secrets.token_urlsafe(_SECRET_BYTES), page if _PAGE.fullmatch(page) else "", stay)

    @classmethod
    def of_cookie(cls, text: str) -> Self | None:
        """Return the sign-in of a cookie; None if it holds none. It may have been set by a stranger."""
        found = _COOKIE.fullmatch(text)
        if found is None:
            return None
        secret, stay, page = found.groups()
        leads_to = _decoded(page)
        return cls(secret, leads_to if _PAGE.fullmatch(leads_to) else "", stay == "1")

    @property
    def cookie(self) -> str:
        """Return the value of its cookie."""
        return f"{self.secret}.{int(self.stay)}.{_base64url(self.leads_to.encode())}"

    @property
    def state(self) -> str:
        """Return the state, which the answer of the issuer repeats."""
        return self._derived(b"state")

    @property
    def nonce(self) -> str:
        """Return the nonce, which the id token repeats."""
        return self._derived(b"nonce")

    @property
    def verifier(self) -> str:
        """Return the code verifier (RFC 7636)."""
        return self._derived(b"verifier")

    def is_answered_by(self, state: str) -> bool:
        """Return True if an answer with this state belongs to the sign-in."""
        return hmac.compare_digest(self.state.encode(), state.encode("utf-8", "surrogatepass"))

    def _derived(self, purpose: bytes) -> str:
        return _base64url(hmac.digest(self.secret.encode(), b"waypost sign-in: " + purpose, hashlib.sha256))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> str:
    """Return a text from base64url; empty for one that is not."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except ValueError:
        return ""
