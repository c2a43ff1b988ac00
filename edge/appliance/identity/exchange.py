"""HTTPS client of a gateway for its hub, on the port of the uplink. It blocks: for commands and threads."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from typing import Any, Final

import msgspec

from bridge.enrolment import (
    ALPN,
    AUTHORITY_PATH,
    DOCUMENT_BYTES_MAX,
    EnrolmentRefusal,
    IssuedCertificate,
    RefusalReason,
)
from bridge.proxy import Proxy, ProxyError, Tunnel
from bridge.resources.endpoint import ListenEndpoint
from bridge.sasl.layer import SASL_HEADER
from bridge.tls_refusal import reason_of, refusal
from edge.broker.security.peer_tls import NO_CHECK_TIME
from edge.output.times import moment

TIMEOUT_S: Final = 15.0
"""Time limit of a connection and of each answer, for a poor cellular link."""
NOT_VALID_NOW: Final = {9: "begins in the future", 10: "has ended"}
"""Results of a verification by OpenSSL (X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED)."""
READ_BYTES: Final = 4_096
"""Bytes that are read of a proxy's answer at a time."""


class HubUnreachable(Exception):
    """The hub does not answer, or the connection broke. The message says where and why."""


class AnswerLost(HubUnreachable):
    """The request may have arrived: repeat it with the same key."""


class WrongHub(Exception):
    """The peer is not the expected hub, or cannot prove it. The message says why."""


class ClockDiffers(WrongHub):
    """The hub's certificate is from the right authority, but not valid by this machine's clock."""


class NoAmqp(WrongHub):
    """The endpoint does not speak AMQP, as its URL says."""


class NotIssued(Exception):
    """The hub refuses the request; the message is the hub's."""

    def __init__(self, reason: str, words: str, gateway_uri: str = "") -> None:
        """`reason`: a value of `RefusalReason`, or one of another version. `gateway_uri`: see `EnrolmentRefusal`."""
        super().__init__(words)
        self.reason = reason
        self.gateway_uri = gateway_uri


class HubEnrolmentClient:
    """Client of one endpoint of a hub."""

    def __init__(
        self, endpoint: ListenEndpoint, timeout_s: float = TIMEOUT_S, *, proxy: Proxy | None = None, amqp: bool = False
    ) -> None:
        """`proxy`: proxy to use, if any. `amqp`: the uplink will use AMQP without WebSocket, so the endpoint has to
        speak it."""
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._proxy = proxy
        self._amqp = amqp

    def authority(self) -> str:
        """Return the certificate of the hub's authority (PEM). It is not verified: compare its fingerprint.

        Raises `HubUnreachable`, `WrongHub`.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with self._connected(context) as connection:
            status, body = self._ask(connection, "GET", AUTHORITY_PATH)
        if status != 200 or b"BEGIN CERTIFICATE" not in body:
            raise WrongHub(f"{self.endpoint} answers, but is not a hub at which gateways can enrol")
        return body.decode("ascii", "replace")

    def ask(self, path: str, document: Any, context: ssl.SSLContext) -> IssuedCertificate:
        """Request a certificate. Raises `HubUnreachable`, `AnswerLost`, `WrongHub`, `NotIssued`."""
        with self._connected(context) as connection:
            try:
                status, body = self._ask(connection, "POST", path, msgspec.json.encode(document))
            except HubUnreachable as error:
                raise AnswerLost(str(error)) from error
        try:
            if status == 200:
                return msgspec.json.decode(body, type=IssuedCertificate)
            refused = msgspec.json.decode(body, type=EnrolmentRefusal)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NotIssued(
                RefusalReason.UNAVAILABLE.value, f"{self.endpoint} answers with HTTP status {status}"
            ) from None
        raise NotIssued(refused.reason, refused.error, refused.gateway_uri)

    def send(self, path: str, document: Any, context: ssl.SSLContext) -> None:
        """Send a document. Raises `HubUnreachable`, `WrongHub`, `NotIssued`."""
        with self._connected(context) as connection:
            status, body = self._ask(connection, "POST", path, msgspec.json.encode(document))
        if status == 200:
            return
        try:
            refused = msgspec.json.decode(body, type=EnrolmentRefusal)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NotIssued(
                RefusalReason.UNAVAILABLE.value, f"{self.endpoint} answers with HTTP status {status}"
            ) from None
        raise NotIssued(refused.reason, refused.error)

    def fetch(self, path: str, context: ssl.SSLContext, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
        """Return the content at a path of the hub. Raises `HubUnreachable`, `WrongHub`, `NotIssued`."""
        with self._connected(context) as connection:
            status, body = self._ask(connection, "GET", path, bytes_max=bytes_max)
        if status != 200:
            raise NotIssued(RefusalReason.UNAVAILABLE.value, f"{self.endpoint} answers with HTTP status {status}")
        return body

    def handshake(self, context: ssl.SSLContext) -> None:
        """Verify the hub's certificate by this context. Raises `HubUnreachable`, `WrongHub`."""
        with self._connected(context):
            pass

    def require_amqp(self, context: ssl.SSLContext) -> None:
        """Check that the endpoint speaks AMQP when the uplink will use it: a hub's HTTPS port enrols gateways too.

        Raises `HubUnreachable`, `WrongHub`.
        """
        if not self._amqp:
            return
        with self._connected(context, web=False) as connection:
            try:
                connection.sock.sendall(SASL_HEADER)
                answer = _received(connection.sock, len(SASL_HEADER))
            except TimeoutError as error:
                raise HubUnreachable(f"{self.endpoint} does not answer AMQP in time") from error
            except OSError:  # a web server closes
                answer = b""
        if answer != SASL_HEADER:
            words = f"{self.endpoint} does not speak AMQP: it is not a port for amqps://"
            step = "a hub prints its ports when it starts (amqps=HOST:PORT, usually 5671; https= is for wss://)"
            raise NoAmqp(f"{words}. No token was spent: {step}")

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self, context: ssl.SSLContext, *, web: bool = True) -> Any:
        """Connect to the hub. `web`: request HTTP in the handshake (ALPN); without ALPN the hub speaks AMQP."""
        if web:
            context.set_alpn_protocols([ALPN])
        host, port = self.endpoint.host, self.endpoint.port
        connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        try:
            if self._proxy is not None:
                connection.sock = self._through(self._proxy, context)
            else:
                connection.connect()
        except ProxyError as error:
            raise HubUnreachable(f"{self.endpoint}: {error}") from error
        except ssl.SSLCertVerificationError as error:
            if (when := NOT_VALID_NOW.get(error.verify_code)) is not None:
                words = f"the certificate of {self.endpoint} {when} by this machine's clock, {moment(time.time())}"
                raise ClockDiffers(words) from error
            why = f"{self.endpoint} did not present this hub's certificate: {error.verify_message}"
            raise WrongHub(why) from error
        except ssl.SSLError as error:
            why = refusal(error) or f"the TLS handshake failed: {reason_of(error) or error}"
            raise WrongHub(f"{self.endpoint}: {why}") from error
        except socket.gaierror as error:
            raise HubUnreachable(f"{self.endpoint}: the host name is not known") from error
        except OSError as error:
            raise HubUnreachable(f"{self.endpoint} does not answer: {_reason_of(error)}") from error
        try:
            yield connection
        finally:
            connection.close()

    def _through(self, proxy: Proxy, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return a TLS connection to the hub through a proxy. Raises `ProxyError`, OSError."""
        host, port = self.endpoint.host, self.endpoint.port
        tunnel = Tunnel(proxy, host, port)
        try:
            opened = socket.create_connection((proxy.host, proxy.port), self._timeout_s)
        except OSError as error:
            raise ProxyError(f"the proxy {proxy.place} does not answer: {_reason_of(error)}") from error
        try:
            opened.sendall(tunnel.request)
            while not tunnel.open:
                tunnel.receive(opened.recv(READ_BYTES))
            return context.wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise

    def _ask(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: bytes | None = None,
        bytes_max: int = DOCUMENT_BYTES_MAX,
    ) -> tuple[int, bytes]:
        """Return (status, body) of a request. Raises `HubUnreachable`, `NotIssued`."""
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read(bytes_max)
        except ssl.SSLError as error:  # an alert of TLS 1.3 arrives after the handshake
            if (why := refusal(error)) is not None:
                raise NotIssued(RefusalReason.NO_CERTIFICATE.value, f"{self.endpoint}: {why}") from error
            raise HubUnreachable(f"{self.endpoint}: the connection broke: {reason_of(error) or error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise HubUnreachable(f"{self.endpoint}: the connection broke: {_reason_of(error)}") from error


def _received(opened: socket.socket, count: int) -> bytes:
    """Return `count` bytes, or fewer if the peer closes earlier. Raises OSError."""
    data = b""
    while len(data) < count and (more := opened.recv(count - len(data))):
        data += more
    return data


def trusting(authority: str, *, check_time: bool = True) -> ssl.SSLContext:
    """Return a context that trusts a hub's authority (PEM). `check_time`: check the validity of certificates by this
    machine's clock."""
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it may be subordinate to an unknown one
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # older versions are deprecated (RFC 8996)
    if not check_time:
        context.verify_flags |= NO_CHECK_TIME
    return context


def _reason_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
