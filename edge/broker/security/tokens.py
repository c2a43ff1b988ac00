"""Verify bearer tokens of an OpenID Connect issuer (RFC 9068 and older forms): user, rights and expiry.

A token is signed with a key that the issuer publishes (RFC 7517). Only asymmetric algorithms are accepted, each with a
key of its own type: ``none``, and a MAC keyed with a public key, are not signatures. Without I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from jwt.types import Options

from edge.broker.configuration import TokenIssuer
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.limits import ISSUER_KEYS_MAX, RULES_PER_USER_MAX, TOKEN_LEEWAY_S, USERNAME_CHARACTERS_MAX
from edge.broker.security.proof import TokenOrigin, VerifiedIdentity
from edge.broker.security.sign_in import IssuedTokens

ALGORITHMS: Final = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "EC", "ES384": "EC", "ES512": "EC", "EdDSA": "OKP",
}  # fmt: skip
"""Accepted signature algorithms (RFC 7518 section 3.1, RFC 8037) and the key type of each."""
_OPTIONS: Final[Options] = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
"""PyJWT does not check times: they are checked here, with our own clock."""
_REQUIRED: Final = ("exp", "iss", "aud")
_OPERATIONS: Final = {operation.value: operation for operation in Operation}


class BearerTokenError(Exception):
    """The token is not accepted. The message says why and contains no part of the token."""


class UnknownIssuerKey(BearerTokenError):
    """The token is signed with an unknown key: the issuer may have a new one."""


class IssuerKey(NamedTuple):
    """A public key of the issuer."""

    id: str | None
    kind: str
    algorithm: str | None
    """The only algorithm the key may be used with; None: any of its type."""
    public: Any


def read_keys(document: object) -> tuple[IssuerKey, ...]:
    """Return the signature keys of a key set (RFC 7517 section 5). Raises BearerTokenError if it is not a key set."""
    listed = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise BearerTokenError("not a key set: no list of keys")
    found = []
    for entry in listed[:ISSUER_KEYS_MAX]:
        if not isinstance(entry, Mapping) or entry.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        if entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        try:
            public = jwt.PyJWK(dict(entry)).key
        except jwt.PyJWTError:
            continue  # an unknown curve or key type
        found.append(IssuerKey(entry.get("kid"), str(entry["kty"]), entry.get("alg"), public))
    return tuple(found)


def verify_person(
    shown: IssuedTokens, nonce: str | None, keys: Sequence[IssuerKey], issuer: TokenIssuer, at_s: float
) -> VerifiedIdentity:
    """Return user and rights of a person who signed in at this time (UTC seconds). Raises BearerTokenError.

    The id token has to be for this client and for the sign-in with this `nonce` (OpenID Connect Core section 3.1.3.7);
    without a nonce the tokens were renewed. User and rights are those of the access token if it is for the audience, as
    a program would show it, else those of the id token.
    """
    subject: object = None
    own = msgspec.structs.replace(issuer, audience=issuer.client_id or "")
    session = ""
    if nonce is not None:
        claims = signed_claims(shown.id_token.encode(), keys, own)
        _check_times(claims, at_s)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise BearerTokenError("the id token is that of another sign-in: its nonce differs")
        if claims.get("azp", issuer.client_id) != issuer.client_id:
            raise BearerTokenError("the id token is that of another client (azp)")
        subject, session = claims.get("sub"), short_claim(claims, "sid")
    found, unknown = "", False
    for token in filter(None, (shown.access_token, shown.id_token)):
        try:
            claims = signed_claims(token.encode(), keys, issuer)
        except BearerTokenError as why:
            found, unknown = found or str(why), unknown or isinstance(why, UnknownIssuerKey)
            continue
        if nonce is not None and claims.get("sub") != subject:
            raise BearerTokenError("the tokens of the sign-in are of two people")
        proven = _proven(claims, issuer, at_s)
        origin = proven.origin or TokenOrigin()
        return proven._replace(origin=origin._replace(session=session or origin.session))
    text = f"no token of the sign-in is for the audience {issuer.audience}: {found}"
    raise UnknownIssuerKey(text) if unknown else BearerTokenError(text)


def verify(token: bytes, keys: Sequence[IssuerKey], issuer: TokenIssuer, at_s: float) -> VerifiedIdentity:
    """Return user and rights of a token that is valid at this time (UTC seconds). Raises BearerTokenError."""
    claims = signed_claims(token, keys, issuer)
    if "events" in claims:
        raise BearerTokenError("it reports an event (RFC 8417): a logout token opens nothing")
    return _proven(claims, issuer, at_s)


def is_signed(token: bytes) -> bool:
    """Return True for a token with the form of a signed one (RFC 7519 section 3); the signature is not checked."""
    try:
        return "alg" in jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        return False


def digest_of(token: bytes) -> str:
    """Return the SHA-256 of a token, hexadecimal. Tokens cannot be guessed, so it needs no key (RFC 6749 section
    10.10)."""
    return hashlib.sha256(token).hexdigest()


def identity_of_answer(claims: Mapping[str, Any], issuer: TokenIssuer, at_s: float) -> VerifiedIdentity:
    """Return user and rights of an opaque token that the issuer says is active (RFC 7662 section 2.2). Raises
    BearerTokenError unless it is for the audience and has an end."""
    audience = claims.get("aud")
    if issuer.audience not in (audience if isinstance(audience, list) else [audience]):
        raise BearerTokenError(f"it is not for the audience {issuer.audience}")
    if claims.get("iss", issuer.issuer) != issuer.issuer:
        raise BearerTokenError("it is of another issuer")
    if "exp" not in claims:
        raise BearerTokenError("the answer of the issuer says no end (exp)")
    return _proven(claims, issuer, at_s)


def signed_claims(
    token: bytes, keys: Sequence[IssuerKey], issuer: TokenIssuer, require: Sequence[str] = _REQUIRED
) -> Mapping[str, Any]:
    """Return the claims of a token for the audience, signed by the issuer. `require`: claims that it has to have.
    Raises BearerTokenError."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        raise BearerTokenError("not a signed token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    kind = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None or algorithm is None:
        raise BearerTokenError(f"algorithm {str(algorithm)[:20]!r} is not supported")
    fitting = [
        key for key in keys if key.kind == kind and key_id in (None, key.id) and key.algorithm in (None, algorithm)
    ]
    if not fitting:
        raise UnknownIssuerKey("signed with an unknown key")
    return _claims(token, fitting, algorithm, issuer, require)


def _claims(
    token: bytes, keys: Sequence[IssuerKey], algorithm: str, issuer: TokenIssuer, require: Sequence[str]
) -> Mapping[str, Any]:
    options: Options = {**_OPTIONS, "require": list(require)}
    why = "the signature is wrong"
    for key in keys:
        try:
            return jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                options=options,
            )
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            why = f"{type(error).__name__}"
    raise BearerTokenError(why)


def _check_times(claims: Mapping[str, Any], at_s: float) -> float:
    """Return the end of a token, UTC seconds. Raises BearerTokenError unless it is valid now."""
    expires_at_s = read_seconds(claims, "exp")
    if expires_at_s <= at_s:
        raise BearerTokenError("it has expired")
    for name in ("nbf", "iat"):
        if name in claims and read_seconds(claims, name) > at_s + TOKEN_LEEWAY_S:
            raise BearerTokenError(f"{name} is in the future: check the clock of the gateway")
    return expires_at_s


def _proven(claims: Mapping[str, Any], issuer: TokenIssuer, at_s: float) -> VerifiedIdentity:
    expires_at_s = _check_times(claims, at_s)
    user = _claim(claims, issuer.user_claim)
    if not isinstance(user, str) or not 0 < len(user) <= USERNAME_CHARACTERS_MAX or not user.isprintable():
        raise BearerTokenError(f"claim {issuer.user_claim} does not contain a user name")
    issued_at_s = read_seconds(claims, "iat") if "iat" in claims else 0.0
    origin = TokenOrigin("", short_claim(claims, "sub"), short_claim(claims, "sid"), issued_at_s)
    return VerifiedIdentity(user, rights(_claim(claims, issuer.rights_claim)), expires_at_s, origin=origin)


def short_claim(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that names something; empty without one, or if it is too long."""
    value = claims.get(name)
    return value if isinstance(value, str) and len(value) <= USERNAME_CHARACTERS_MAX and _is_text(value) else ""


def _is_text(value: str) -> bool:
    """Return False for a text with half of a surrogate pair, which JSON may have and no file takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return a claim that is a time, UTC seconds. Raises BearerTokenError."""
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15 or math.isnan(value):
        raise BearerTokenError(f"claim {name} is not a time")
    return float(value)


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by name. A dot in the name selects a field of an object, unless a claim has the whole name."""
    if path in claims:
        return claims[path]
    value: object = claims
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def rights(claim: object) -> tuple[AccessRule, ...]:
    """Parse rights such as ``send:plant/#`` from a claim: text separated by spaces (scope, RFC 8693), or a list.

    Other words are ignored. ``%u`` and ``%c`` stand for user and client id, as in every rule.
    """
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    found: list[AccessRule] = []
    for word in words:
        name, colon, pattern = word.partition(":") if isinstance(word, str) else ("", "", "")
        if colon and pattern and name in _OPERATIONS and len(found) < RULES_PER_USER_MAX and _is_text(pattern):
            found.append(AccessRule((pattern,), frozenset((_OPERATIONS[name],))))
    return tuple(found)
