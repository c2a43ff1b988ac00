"""Devices that authenticate with a certificate, at a running gateway: over MQTT, or over HTTP."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final

from edge.broker.mqtt import packets
from tests.support.certificates import Authority, Issued
from tests.support.processes import Waypost

CONNECT_S: Final = 20.0
USERS: Final = "".join(
    f"""
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.{name}}}
spec:
  username: {name}
  authentication: {{type: serviceaccount}}
  authorization: [{{addresses: ["#"], operations: [send, recv, view]}}]
"""
    for name in ("pump1", "pump2")
)
"""Users of two devices, by the names in their certificates."""


def connected(authority: Authority, gateway: Waypost, device: Issued, protocol: str = "mqtts") -> ssl.SSLSocket | None:
    """Connect and read an answer; None when the gateway refuses the certificate."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if protocol == "mqtts":
        request = packets.Connect(Path(device.certificate).stem, 5).encode()
    raw = socket.create_connection(("127.0.0.1", gateway.port(protocol)), CONNECT_S)
    peer = authority.context(device).wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
    try:
        peer.do_handshake()
        peer.sendall(request)
        if peer.recv(65_536):
            return peer
    except OSError:
        pass
    peer.close()
    return None


def is_admitted(authority: Authority, gateway: Waypost, device: Issued, protocol: str = "mqtts") -> bool:
    """Return True if the gateway lets a device in."""
    peer = connected(authority, gateway, device, protocol)
    if peer is not None:
        peer.close()
    return peer is not None


def is_over(peer: ssl.SSLSocket) -> bool:
    """Return True once the gateway has closed the connection."""
    peer.settimeout(0.05)
    try:
        return not peer.recv(65_536)
    except TimeoutError:
        return False
    except OSError:
        return True
