"""Requests to an OpenID Connect issuer: its discovery document, its keys, its token endpoint. They block.

An address that the issuer's own document names is used only if it is of the issuer's scheme and host, or of a host that
the configuration lists. Redirects are refused, as they could lead from TLS to plain HTTP.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from edge.broker.configuration import TlsFiles, TokenIssuer
from edge.broker.security.limits import ISSUER_DOCUMENT_BYTES_MAX, ISSUER_TIMEOUT_S
from edge.broker.security.peer_tls import peer_context

DISCOVERY: Final = "/.well-known/openid-configuration"
_READ_BYTES: Final = 16_384
SIGN_OUT: Final = "end_session_endpoint"
"""Endpoint that ends a person's session at the issuer (OpenID Connect RP-Initiated Logout 1.0); not every issuer has
it."""
_OF_SIGN_IN: Final = ("authorization_endpoint", "token_endpoint")


class IssuerError(Exception):
    """A request to the issuer failed. The message says why."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead from TLS to plain HTTP."""

    def redirect_request(self, *_: Any) -> None:
        return None


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


def post_form(
    issuer: TokenIssuer, where: str, form: Mapping[str, str], secret: tuple[str, str] | None
) -> tuple[int, Any]:
    """Post a form to the token endpoint; return status and document. `secret`: client and its secret (RFC 6749 section
    2.3.1). Raises IssuerError."""
    fields = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if secret is not None:
        shown = ":".join(quote(part, safe="") for part in secret)
        fields["Authorization"] = f"Basic {base64.b64encode(shown.encode()).decode()}"
    request = urllib.request.Request(where, urlencode(form).encode(), fields)  # noqa: S310 - a checked address
    return _read(_opener(issuer), request)


def _opener(issuer: TokenIssuer) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if issuer.issuer.startswith("https:"):
        try:
            handlers.append(urllib.request.HTTPSHandler(context=peer_context(TlsFiles(ca=issuer.ca))))
        except OSError as error:
            raise IssuerError(str(error)) from error
    return urllib.request.build_opener(*handlers)


def _document(opener: urllib.request.OpenerDirector, issuer: TokenIssuer) -> Mapping[str, Any]:
    document = _get(opener, issuer.issuer.rstrip("/") + DISCOVERY)
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


def _get(opener: urllib.request.OpenerDirector, url: str) -> Any:
    status, document = _read(opener, urllib.request.Request(url))  # noqa: S310 - a checked address
    if status != 200:
        raise IssuerError(f"{url}: status {status}")
    return document


def _read(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> tuple[int, Any]:
    """Return status and JSON of an answer, also of an error with JSON. Raises IssuerError."""
    deadline, body, url = time.monotonic() + ISSUER_TIMEOUT_S, b"", request.full_url
    try:
        try:
            answer = opener.open(request, timeout=ISSUER_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            while part := answer.read1(_READ_BYTES):
                body += part
                if len(body) > ISSUER_DOCUMENT_BYTES_MAX:
                    raise IssuerError(f"{url}: more than {ISSUER_DOCUMENT_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise IssuerError(f"{url}: incomplete after {ISSUER_TIMEOUT_S:g} s")
            status = int(answer.status or 0)
        if status >= 300:
            return status, _error_document(body)
        return status, json.loads(body)
    except (OSError, ValueError, RecursionError) as error:
        raise IssuerError(f"{url}: {getattr(error, 'reason', None) or error}") from error


def _error_document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
