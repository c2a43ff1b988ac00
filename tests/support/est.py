"""Server of Enrollment over Secure Transport (RFC 7030), its authority, and configurable faults."""

from __future__ import annotations

import base64
import datetime
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs7 import serialize_certificates
from cryptography.x509.oid import ExtendedKeyUsageOID

from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment.est import EstServer, EstUrl
from edge.broker.configuration import TlsFiles
from tests.support.certificates import Authority

PATH = "/.well-known/est/devices"
PASSWORD = "waypost at the door"
BASIC = "Basic " + base64.b64encode(f"hub:{PASSWORD}".encode()).decode()


class Answer(NamedTuple):
    """Answer instead of a certificate."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class EstStub:
    """Runs on a loopback port while its context is open."""

    def __init__(self, folder: Path, *, days: float = 1.0) -> None:
        """`days`: life of the issued certificates."""
        self._named = self.authority = Authority(folder, "company authority")
        self.asked = 0
        """Number of requested certificates."""
        self.profile: Callable[[x509.CertificateBuilder], x509.CertificateBuilder] = lambda builder: builder
        """Changes a certificate before it is signed."""
        self.names_itself = True
        """Answers name the signing authority; False for another one."""
        self.copies_names = True
        """Its certificates have the subjectAltName of the request."""
        self.refuses: Answer | None = None
        """Answer instead of any other."""
        self._days = days
        self._shown = self.authority.issue("localhost", file="est-server", usage="serverAuth")
        self.hub = self.authority.issue("hub", usage="clientAuth")
        """Client certificate of the hub."""
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def new_authority(self, folder: Path) -> None:
        """Issue later certificates with a new authority; the server's own certificate stays."""
        self._named, self.authority = self.authority, Authority(folder, "next company authority")

    @property
    def url(self) -> EstUrl:
        return EstUrl(ListenEndpoint("localhost", self.port), PATH)

    def server(self, *, certificate: bool = True) -> EstServer:
        """Return the server as configured in the hub: with a client certificate, or with name and password."""
        ca = self._shown.certificate.replace("est-server.pem", "ca.pem")
        if certificate:
            return EstServer(self.url, TlsFiles(ca=ca, certificate=self.hub.certificate, key=self.hub.key))
        return EstServer(self.url, TlsFiles(ca=ca), "hub", PASSWORD)

    def __enter__(self) -> Self:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub._answer(self, lambda: stub._certificates() if self.path == f"{PATH}/cacerts" else None)

            def do_POST(self) -> None:
                stub._answer(self, lambda: stub._enrolled(self) if self.path == f"{PATH}/simpleenroll" else None)

            def log_message(self, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._shown.certificate, self._shown.key)
        context.load_verify_locations(self._shown.certificate.replace("est-server.pem", "ca.pem"))
        context.verify_mode = ssl.CERT_OPTIONAL
        server = self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = False
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = server.server_port
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(30)
            self._server.server_close()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _certificates(self) -> bytes:
        named = self.authority if self.names_itself else self._named
        own = x509.load_pem_x509_certificate(Path(named.certificate).read_bytes())
        return serialize_certificates([own], Encoding.DER)

    def _answer(self, handler: BaseHTTPRequestHandler, work: Callable[[], bytes | Answer | None]) -> None:
        body, headers = b"", {"Content-Type": "application/pkcs7-mime", "Content-Transfer-Encoding": "base64"}
        made = None if self.refuses is not None else work()
        if self.refuses is not None:
            status, body, headers = self.refuses
        elif made is None:
            status = 404
        elif isinstance(made, Answer):
            status, body, headers = made
        else:
            status, body = 200, base64.encodebytes(made)
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _enrolled(self, handler: BaseHTTPRequestHandler) -> bytes | Answer:
        connection = handler.connection
        assert isinstance(connection, ssl.SSLSocket)
        if not connection.getpeercert() and handler.headers.get("Authorization") != BASIC:
            return Answer(401, b"who are you?", {"Content-Type": "text/plain"})
        if handler.headers.get_content_type() != "application/pkcs10":
            return Answer(415)
        self.asked += 1
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        return serialize_certificates([self._signed(x509.load_der_x509_csr(base64.b64decode(body)))], Encoding.DER)

    def _signed(self, request: x509.CertificateSigningRequest) -> x509.Certificate:
        own = x509.load_pem_x509_certificate(Path(self.authority.certificate).read_bytes())
        key = load_pem_private_key(Path(self.authority.key).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(own.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=self._days))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        if self.copies_names:
            for each in request.extensions:
                builder = builder.add_extension(each.value, critical=each.critical)
        return self.profile(builder).sign(key, hashes.SHA256())
