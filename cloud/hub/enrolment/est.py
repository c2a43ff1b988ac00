"""Client for Enrollment over Secure Transport (RFC 7030): another authority signs the gateways' certificates.

The hub is its registration authority: it checks the identity of a gateway, and passes on requests for exactly that
identity. Blocks; for use in threads.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import load_der_pkcs7_certificates

from bridge.hidden import hides
from bridge.resources.endpoint import ListenEndpoint, valid_host
from bridge.tls_refusal import reason_of, refusal
from cloud.hub.enrolment.limits import EST_ANSWER_BYTES_MAX, EST_TIMEOUT_S
from edge.broker.configuration import TlsFiles
from edge.broker.security.peer_tls import PeerTlsError, peer_context
from edge.output.text import line

AUTHORITIES: Final = "/cacerts"
"""RFC 7030 section 4.1."""
ENROLLED: Final = "/simpleenroll"
"""RFC 7030 section 4.2.1. Also used for renewals, because a registration authority does not have its clients' keys."""

HTTPS_PORT: Final = 443
HTTP_OK: Final = 200
HTTP_LATER: Final = 202
"""RFC 7030 section 4.2.3: the request is pending, for example for a person's decision."""
HTTP_TOO_MANY: Final = 429
HTTP_SERVER_ERROR: Final = 500


class EstError(Exception):
    """The server issued no certificate; the message names the server and says why."""


class EstUnavailable(EstError):
    """Temporary failure: the server does not answer, or asks to retry later."""


class EstUrl(NamedTuple):
    """URL ``https://HOST[:PORT]/.well-known/est``, followed by a label if the server has several authorities."""

    endpoint: ListenEndpoint
    path: str
    """Path without a trailing slash."""

    @classmethod
    def parse(cls, text: str) -> EstUrl:
        """Parse a URL. Raises `ValueError`."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port or HTTPS_PORT
        except ValueError as error:
            raise ValueError(f'"{text}": {error}') from None
        if parts.scheme != "https" or not host or parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f'"{text}" is not an EST URL; expected https://host/.well-known/est')
        return cls(ListenEndpoint(valid_host(host), port), parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"https://{self.endpoint}{self.path}"


@hides("password")
class EstServer(NamedTuple):
    """EST server with the hub's credentials."""

    url: EstUrl
    tls: TlsFiles
    """Trusted authority of the server, and the hub's client certificate."""
    user: str = ""
    """User for HTTP Basic; empty for authentication by client certificate."""
    password: str = ""


class EstClient:
    """Client of one server."""

    def __init__(self, server: EstServer, timeout_s: float = EST_TIMEOUT_S) -> None:
        self._server = server
        self._timeout_s = timeout_s

    def authorities(self) -> list[x509.Certificate]:
        """Fetch the certificates of the authority: root, intermediates and, during a key change, the next ones (section
        4.1.3). Raises `EstError`."""
        found = self._certificates("GET", AUTHORITIES, None)
        if not found:
            raise EstError(f"{self._server.url} returned no authority certificate")
        return found

    def enrol(self, request: x509.CertificateSigningRequest) -> x509.Certificate:
        """Request a certificate. Raises `EstError`."""
        body = base64.encodebytes(request.public_bytes(Encoding.DER))
        for each in self._certificates("POST", ENROLLED, body):
            if each.public_key() == request.public_key():
                return each
        raise EstError(f"{self._server.url} returned no certificate for the requested key")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _certificates(self, method: str, path: str, body: bytes | None) -> list[x509.Certificate]:
        status, headers, answer = self._request(method, path, body)
        if status == HTTP_LATER:
            wait = headers.get("Retry-After", "")
            raise EstUnavailable(f"{self._server.url} has not decided yet{f'; retry after {wait} s' if wait else ''}")
        if status != HTTP_OK:
            text = _first_line(answer) if headers.get_content_type() == "text/plain" else ""
            words = f"{self._server.url} answers with HTTP status {status}{f': {text}' if text else ''}"
            raise (EstUnavailable if status >= HTTP_SERVER_ERROR or status == HTTP_TOO_MANY else EstError)(words)
        try:
            return list(load_der_pkcs7_certificates(base64.b64decode(b"".join(answer.split()), validate=True)))
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise EstError(f"{self._server.url} did not answer with certificates (PKCS #7, RFC 8951)") from error

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        headers = {"Accept": "application/pkcs7-mime"}
        if body is not None:
            headers |= {"Content-Type": "application/pkcs10", "Content-Transfer-Encoding": "base64"}
        if self._server.user:
            given = f"{self._server.user}:{self._server.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(given).decode()}"
        try:
            context = peer_context(self._server.tls)
            at, base = self._server.url
            connection = http.client.HTTPSConnection(at.host, at.port, timeout=self._timeout_s, context=context)
            with contextlib.closing(connection):
                connection.request(method, base + path, body, headers)
                answer = connection.getresponse()
                content = answer.read(EST_ANSWER_BYTES_MAX + 1)
        except (PeerTlsError, ssl.SSLError, socket.gaierror, OSError, http.client.HTTPException) as error:
            raise EstUnavailable(f"{self._server.url}: {_why(error)}") from error
        if len(content) > EST_ANSWER_BYTES_MAX:
            raise EstError(f"{self._server.url} answers with more than {EST_ANSWER_BYTES_MAX} bytes")
        return answer.status, answer.headers, content


def _why(error: Exception) -> str:
    if isinstance(error, PeerTlsError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return refusal(error) or f"the TLS handshake failed: {reason_of(error) or error}"
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _first_line(body: bytes) -> str:
    """Return the text of a response as one line."""
    return line(" ".join(body[:200].decode("utf-8", "replace").split()))
