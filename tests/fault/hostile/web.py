"""HTTP requests with arbitrary Host, Origin and credentials."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

from tests.support.configured_gateway import encoded
from tests.support.http_client import WAIT_S, Answer, ask_port

FOREIGN: Final = {"Host": "evil.example", "Origin": "http://evil.example"}
"""Headers of a browser after DNS rebinding, when a foreign name was made to resolve to this machine."""


def ask(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    user: str = "",
    token: str = "",
    body: bytes = b"",
) -> Answer:
    """Send one request; `user` is ``name:password``. Without a Host in `headers` it is the address of the server."""
    sent = dict(headers or {})
    if user:
        sent["Authorization"] = f"Basic {encoded(user)}"
    if token:
        sent["Authorization"] = f"Bearer {token}"
    return ask_port(port, method, path, body, sent)


def send_raw(port: int, *data: bytes, timeout_s: float = WAIT_S) -> bytes:
    """Return everything the server sends until it closes, or until it is silent for this time."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as peer:
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            for part in data:
                peer.sendall(part)
            while piece := peer.recv(65_536):
                found += piece
    return found


def statuses(answer: bytes) -> list[int]:
    """Return the status of each answer in a server's output."""
    lines = [line for line in answer.split(b"\r\n") if b"HTTP/1.1 " in line]
    return [int(line.partition(b"HTTP/1.1 ")[2][:3]) for line in lines]


def gateway_of(*, authentication: str = "{name: standard}", listeners: str = "", extra: str = "") -> str:
    """Return resources of a gateway with authentication."""
    return f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  hub: {{url: "amqp://127.0.0.1:9"}}
  listeners: {{mqtt: "127.0.0.1:0", http: "127.0.0.1:0", mqttWs: "127.0.0.1:0"{listeners}}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{authenticationService: {authentication}}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.jobs}}
spec: {{address: jobs, type: queue}}
{extra}"""
