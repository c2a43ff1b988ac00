"""Gateways with resources of a test: the text of the resources, and the process."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.processes import Waypost


def resources(
    *documents: str,
    listeners: tuple[str, ...] = ("mqtt", "amqp", "http"),
    space: str = "authenticationService: {name: standard}",
) -> str:
    """Return a gateway with these listeners on free ports, its address space, and further documents."""
    ports = ", ".join(f'{name}: "127.0.0.1:0"' for name in listeners)
    return f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: hall}}
spec: {{listeners: {{{ports}}}}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{{space}}}
{"".join(documents)}"""


def address(name: str, pattern: str, kind: str) -> str:
    """Return an address: a topic, a queue or another kind."""
    return f"""
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.{name}}}
spec: {{address: "{pattern}", type: {kind}}}
"""


def user(name: str, operations: str, addresses: str = '"#"', *, password: str = "") -> str:
    """Return a user with a password; the default is the name."""
    return f"""
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.{name}}}
spec:
  username: {name}
  authentication: {{type: password, password: {encoded(password or name)}}}
  authorization: [{{addresses: [{addresses}], operations: [{operations}]}}]
"""


def basic(name: str, password: str) -> dict[str, str]:
    """Return the header field by which a user logs in over HTTP."""
    return {"Authorization": f"Basic {encoded(f'{name}:{password}')}"}


def encoded(text: str) -> str:
    """Return a text in Base64."""
    return base64.b64encode(text.encode()).decode()


def gateway_with(folder: Path, text: str) -> Waypost:
    """Return a gateway of these resources, started by entering it; its data directory is ``folder/gw``."""
    file = folder / "gateway.yaml"
    file.write_text(text)
    return Waypost(folder / "gw.log", "run", "--data", str(folder / "gw"), "--config", str(file))
