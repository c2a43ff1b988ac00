"""Requests to an OpenID Connect issuer: its discovery document, its keys, the endpoints for tokens. They block.

An address that the issuer's own document names is used only if it is of the issuer's scheme and host, or of a host that
the configuration lists. Redirects are refused, as they could lead from TLS to plain HTTP.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from edge.broker.configuration import TlsFiles, TokenIssuer
from edge.broker.security.deadline_requests import deadline_opener
from edge.broker.security.limits import INTROSPECTION_TIMEOUT_S, ISSUER_DOCUMENT_BYTES_MAX, ISSUER_TIMEOUT_S
from edge.broker.security.peer_tls import peer_context

DISCOVERY: Final = "/.well-known/openid-configuration"
_READ_BYTES: Final = 16_384
SIGN_OUT: Final = "end_session_endpoint"
"""Endpoint that ends a person's session at the issuer (OpenID Connect RP-Initiated Logout 1.0); not every issuer has
it."""
_INTROSPECTION: Final = "introspection_endpoint"
"""Name of the endpoint in the issuer's document (RFC 8414 section 2)."""
_OF_SIGN_IN: Final = ("authorization_endpoint", "token_endpoint")


class IssuerError(Exception):
    """A request to the issuer failed. The message says why."""


class IssuerUnreachable(IssuerError):
    """The issuer did not answer."""


class TokenUnreadable(IssuerError):
    """The issuer answered 400 to a question about a token: the token is none, or something in between refuses."""


def fetch_keys(issuer: TokenIssuer) -> Any:
    """Fetch the key set of the issuer. Blocks for up to twice `ISSUER_TIMEOUT_S`. Raises IssuerError."""
    opener = _opener(issuer)
    where = _checked(_document(opener, issuer), "jwks_uri", issuer)
    return _get(opener, where)


def discover(issuer: TokenIssuer) -> Mapping[str, Any]:
    """Fetch the issuer's document, with the endpoints that a sign-in needs. Raises IssuerError.

    It has `SIGN_OUT` only if that may be used.
    """
    document = dict(_document(_opener(issuer), issuer))
    for name in _OF_SIGN_IN:
        _checked(document, name, issuer)
    try:
        _checked(document, SIGN_OUT, issuer)
    except IssuerError:
        document.pop(SIGN_OUT, None)
    return document


class IntrospectionEndpoint:
    """Endpoint of the issuer that says whether a token is active (RFC 7662). For several threads."""

    def __init__(self, issuer: TokenIssuer, client_id: str, client_secret: str) -> None:
        self._issuer = issuer
        self._secret = (client_id, client_secret)
        self._found: tuple[urllib.request.OpenerDirector, str] | None = None
        """Opener and address, found once: reading the authorities of the system takes longer than a question."""

    def ask(self, token: bytes) -> Mapping[str, Any]:
        """Return the answer about a token, with `active`; blocks. Raises IssuerError, of it `TokenUnreadable` and
        `IssuerUnreachable`."""
        try:
            return self._answer(token)
        except IssuerError:
            self._found = None  # the address may have changed, or the file of the authority
            raise

    def _answer(self, token: bytes) -> Mapping[str, Any]:
        if self._found is None:
            opener = _opener(self._issuer)
            document = _document(opener, self._issuer, INTROSPECTION_TIMEOUT_S)
            self._found = opener, _checked(document, _INTROSPECTION, self._issuer)
        opener, where = self._found
        form: dict[str, str | bytes] = {"token": token, "token_type_hint": "access_token"}
        status, answer = _read(opener, _form_request(where, form, self._secret), INTROSPECTION_TIMEOUT_S)
        if status == 400:
            raise TokenUnreadable(f"{where}: status 400")
        if status in (401, 403):
            raise IssuerError(f"{where}: status {status}: check introspection.clientId and clientSecret")
        if status != 200 or not isinstance(answer, Mapping) or not isinstance(answer.get("active"), bool):
            raise IssuerError(f"{where}: status {status}, and no answer about the token")
        return answer


def post_form(
    issuer: TokenIssuer, where: str, form: Mapping[str, str], secret: tuple[str, str] | None
) -> tuple[int, Any]:
    """Post a form to the token endpoint; return status and document. `secret`: client and its secret. Raises
    IssuerError."""
    return _read(_opener(issuer), _form_request(where, form, secret))


def _form_request(
    where: str, form: Mapping[str, str | bytes], secret: tuple[str, str] | None
) -> urllib.request.Request:
    """Return the request that posts a form to a checked address, with client and secret (RFC 6749 section 2.3.1)."""
    fields = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if secret is not None:
        shown = ":".join(quote(part, safe="") for part in secret)
        fields["Authorization"] = f"Basic {base64.b64encode(shown.encode()).decode()}"
    return urllib.request.Request(where, urlencode(form).encode(), fields)  # noqa: S310 - a checked address


def _opener(issuer: TokenIssuer) -> urllib.request.OpenerDirector:
    if not issuer.issuer.startswith("https:"):
        return deadline_opener()
    try:
        return deadline_opener(peer_context(TlsFiles(ca=issuer.ca)))
    except OSError as error:
        raise IssuerError(str(error)) from error


def _document(
    opener: urllib.request.OpenerDirector, issuer: TokenIssuer, within_s: float = ISSUER_TIMEOUT_S
) -> Mapping[str, Any]:
    document = _get(opener, issuer.issuer.rstrip("/") + DISCOVERY, within_s)
    if not isinstance(document, dict) or document.get("issuer") != issuer.issuer:
        raise IssuerError("its discovery document is that of another issuer")  # section 4.3
    return document


def _checked(document: Mapping[str, Any], name: str, issuer: TokenIssuer) -> str:
    """Return an address of the document. Raises IssuerError unless it may be used: a document must not direct requests
    to any host."""
    where = str(document.get(name))
    try:
        place, own = urlsplit(where), urlsplit(issuer.issuer)
    except ValueError:
        raise IssuerError(f"its discovery document names no {name}") from None
    if place.scheme != own.scheme:
        raise IssuerError(f"its discovery document names no {name} of the same scheme")
    if place.netloc.lower() not in (own.netloc.lower(), *(host.lower() for host in issuer.key_hosts)):
        host = place.netloc.rpartition("@")[2][:100]
        what = "keys are" if name == "jwks_uri" else f"{name} is"
        raise IssuerError(f"its {what} on another host, {host}: list it in oidc.keyHosts if that is right")
    return where


def _get(opener: urllib.request.OpenerDirector, url: str, within_s: float = ISSUER_TIMEOUT_S) -> Any:
    status, document = _read(opener, urllib.request.Request(url), within_s)  # noqa: S310 - a checked address
    if status != 200:
        raise IssuerError(f"{url}: status {status}")
    return document


def _read(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, within_s: float = ISSUER_TIMEOUT_S
) -> tuple[int, Any]:
    """Return status and JSON of an answer, also of an error with JSON. Raises IssuerError."""
    deadline, body, url = time.monotonic() + within_s, b"", request.full_url
    try:
        try:
            answer = opener.open(request, timeout=within_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            while part := answer.read1(_READ_BYTES):
                body += part
                if len(body) > ISSUER_DOCUMENT_BYTES_MAX:
                    raise IssuerError(f"{url}: more than {ISSUER_DOCUMENT_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise IssuerError(f"{url}: incomplete after {within_s:g} s")
            status = int(answer.status or 0)
        if status >= 300:
            return status, _error_document(body)
        return status, json.loads(body)
    except OSError as error:
        raise IssuerUnreachable(f"{url}: {getattr(error, 'reason', None) or str(error)}") from error
    except (ValueError, RecursionError, http.client.HTTPException) as error:
        raise IssuerError(f"{url}: {getattr(error, 'reason', None) or str(error) or type(error).__name__}") from error


def _error_document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
