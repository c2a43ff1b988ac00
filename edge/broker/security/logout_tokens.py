"""Verify logout tokens of an issuer (OpenID Connect Back-Channel Logout 1.0 section 2.6). Without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from edge.broker.configuration import TokenIssuer
from edge.broker.security.limits import LOGOUT_TOKEN_AGE_S, TOKEN_LEEWAY_S
from edge.broker.security.sign_outs import EndedSignIn
from edge.broker.security.tokens import BearerTokenError, IssuerKey, read_seconds, short_claim, signed_claims

EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_REQUIRED: Final = ("iss", "aud", "iat", "jti", "events")


def verify_logout(token: bytes, keys: Sequence[IssuerKey], issuer: TokenIssuer, at_s: float) -> EndedSignIn:
    """Return the sign-in that a logout token ends at this time (UTC seconds). Raises BearerTokenError.

    Its identifier (`jti`) is not remembered: a token that is shown twice ends nothing more (`sign_outs`).
    """
    own = msgspec.structs.replace(issuer, audience=issuer.client_id or "")
    claims = signed_claims(token, keys, own, require=_REQUIRED)
    _check_event(claims)
    issued_at_s = read_seconds(claims, "iat")
    if issued_at_s > at_s + TOKEN_LEEWAY_S or at_s - issued_at_s > LOGOUT_TOKEN_AGE_S:
        raise BearerTokenError("the logout token is old, or from the future: check the clock of this node")
    if "exp" in claims and read_seconds(claims, "exp") <= at_s:
        raise BearerTokenError("the logout token has expired")
    subject, session = short_claim(claims, "sub"), short_claim(claims, "sid")
    if not subject and not session:
        raise BearerTokenError("the logout token names neither a person (sub) nor a session (sid)")
    return EndedSignIn(subject, session, issued_at_s)


def _check_event(claims: Mapping[str, Any]) -> None:
    """Raise BearerTokenError unless the claims are those of a logout token, and not of an id token."""
    events = claims["events"]
    if not isinstance(events, Mapping) or not isinstance(events.get(EVENT), Mapping):
        raise BearerTokenError("not a logout token (events)")
    if "nonce" in claims:
        raise BearerTokenError("not a logout token: it has a nonce")
    if not isinstance(claims["jti"], str) or not claims["jti"]:
        raise BearerTokenError("the logout token has no identifier (jti)")
