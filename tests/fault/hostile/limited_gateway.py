"""Gateway with small limits of memory and connections, and the wait until it returns what an attack took."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from edge.broker.limits import MIB
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import status
from tests.support.processes import Waypost, resident_mib, wait_until

MEMORY_MIB: Final = 128
"""`limits.memoryBytesMax`: connections may hold a third of it."""
PACKET_MIB: Final = 4
CONNECTIONS: Final = 600
RESOURCES: Final = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: hall}}
spec:
  listeners: {{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", mqttWs: "127.0.0.1:0", http: "127.0.0.1:0"}}
  limits: {{memoryBytesMax: {memory}, packetBytesMax: {packet}, connectionsMax: {connections}, handshakeS: 30}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{authenticationService: {{name: none}}}}
"""
RETURNED_S: Final = 30.0
"""Time until memory is returned. Without other work it takes 10 s: data that a peer sent before its end comes first."""
KEPT_MIB: Final = 24
"""Memory that an attack may leave: loaded code, and fragments of the allocator."""


def limited_gateway(
    folder: Path, memory_mib: int = MEMORY_MIB, packet_mib: int = PACKET_MIB, connections: int = CONNECTIONS
) -> Waypost:
    """Return a gateway with these limits, started by entering it."""
    limits = {"memory": memory_mib * MIB, "packet": packet_mib * MIB, "connections": connections}
    return gateway_with(folder, RESOURCES.format(**limits))


def await_pools(running: Waypost, before_mib: float, *, kept_mib: float = KEPT_MIB) -> float:
    """Wait until connections hold nothing, and all memory but `kept_mib` is returned; return the seconds."""
    began = time.monotonic()

    def returned() -> bool:
        held = sum(pool["held"] for pool in status(running)["memory"]["pools"].values())
        return not held and resident_mib(running.pid) < before_mib + kept_mib

    wait_until(returned, timeout_s=RETURNED_S, what="the memory is returned")
    return time.monotonic() - began
