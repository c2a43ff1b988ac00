"""A gateway over HTTPS: devices with a certificate publish; those without learn what is missing."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
from pathlib import Path

from tests.integration.test_auth import apply
from tests.support.certificates import Authority
from tests.support.processes import Waypost

WAIT_S = 20.0


def ask(port: int, context: ssl.SSLContext, method: str, path: str, body: bytes = b"21.5") -> int:
    connection = http.client.HTTPSConnection("localhost", port, timeout=WAIT_S, context=context)
    connection.request(method, path, body if method == "POST" else None)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_certificates_and_the_console(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server, device, stranger = authority.issue("gw1"), authority.issue("sensor-7"), authority.issue("stranger")
    apply(
        tmp_path,
        f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  listeners:
    https: "127.0.0.1:0"
    tls: {{certificate: "{server.certificate}", key: "{server.key}", clientCa: "{authority.certificate}"}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{authenticationService: {{name: external}}}}
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.sensor-7}}
spec:
  username: sensor-7
  authentication: {{type: serviceaccount}}
  authorization: [{{addresses: ["plant/%u/#"], operations: [send]}}, {{addresses: [jobs], operations: [send, recv]}}]
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.jobs}}
spec: {{address: jobs, type: queue}}
""",
    )
    with Waypost(tmp_path / "gw.log", "edge", "run", "--data", str(tmp_path / "gw")) as gateway:
        port = gateway.port("https")
        known, unknown, nobody = (authority.context(issued) for issued in (device, stranger, None))
        assert ask(port, known, "POST", "/t/plant/sensor-7/temp") == 202
        assert ask(port, known, "POST", "/t/plant/sensor-8/temp") == 403
        assert ask(port, unknown, "POST", "/t/plant/stranger/temp") == 401
        assert ask(port, nobody, "POST", "/t/plant/sensor-7/temp") == 401
        assert ask(port, nobody, "GET", "/healthz") == 200
        assert ask(port, known, "POST", "/t/jobs", b"x" * 3_000_000) == 202
        reset_after_the_beginning(port, known)
        assert ask(port, known, "GET", "/c/jobs?settle=auto&wait=10") == 200, "it was not settled"
        assert ask(port, known, "GET", "/c/jobs?settle=auto") == 204, "now it was"
        assert gateway.stop() == 0


def reset_after_the_beginning(port: int, context: ssl.SSLContext) -> None:
    """Fetch a message over TLS, read part of it, and reset the connection."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plain.settimeout(WAIT_S)
    plain.connect(("127.0.0.1", port))
    secure = context.wrap_socket(plain, server_hostname="localhost")
    secure.sendall(b"GET /c/jobs?settle=auto&wait=10 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert secure.recv(200).startswith(b"HTTP/1.1 200")
    secure.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    secure.close()
