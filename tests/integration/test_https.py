"""A gateway over HTTPS: devices with a certificate publish; those without learn what is missing."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import ask

WAIT_S = 20.0


def test_client_certificates_decide_what_a_device_may_publish(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server, device, stranger = authority.issue("gw1"), authority.issue("sensor-7"), authority.issue("stranger")
    text = f"""
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
"""
    with gateway_with(tmp_path, text) as gateway:
        known, unknown, nobody = (authority.context(issued) for issued in (device, stranger, None))
        assert ask(gateway, "POST", "/t/plant/sensor-7/temp", b"21.5", tls=known).status == 202
        assert ask(gateway, "POST", "/t/plant/sensor-8/temp", b"21.5", tls=known).status == 403
        assert ask(gateway, "POST", "/t/plant/stranger/temp", b"21.5", tls=unknown).status == 401
        assert ask(gateway, "POST", "/t/plant/sensor-7/temp", b"21.5", tls=nobody).status == 401
        assert ask(gateway, "GET", "/healthz", tls=nobody).status == 200
        assert ask(gateway, "POST", "/t/jobs", b"x" * 3_000_000, tls=known).status == 202
        reset_after_the_beginning(gateway.port("https"), known)
        assert ask(gateway, "GET", "/c/jobs?settle=auto&wait=10", tls=known).status == 200, "it was not settled"
        assert ask(gateway, "GET", "/c/jobs?settle=auto", tls=known).status == 204, "now it was"
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
