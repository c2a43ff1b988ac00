"""A hub and a gateway that forwards to it, and a check of the lake that each message landed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.lake import rows
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, free_port, hub, landing_soon, wait_until

SENT = 60
ADDRESSES = 3


IN_MEMORY = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.load}},
  spec: {{address: load/#, type: topic, durability: memory, forwarders: [{{name: up, remoteAddress: hub}}]}}}}
"""


class UplinkedGateway:
    """A hub and a gateway; the test starts both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.hub = hub(folder, f"--amqp=127.0.0.1:{self.port}", *landing_soon(folder))
        uplink = (f"--hub=amqp://127.0.0.1:{self.port}", "--gateway=gw1", "--forward=load/#")
        self.gateway = edge(folder, "gw1", *uplink)
        self.acked: list[bytes] = []

    def keep_in_memory(self) -> None:
        """Make the forwarded addresses ``durability: memory``."""
        path = self.folder / "gateway.yaml"
        path.write_text(IN_MEMORY.format(port=self.port))
        arguments = ("run", "--data", str(self.data), "--config", str(path))
        self.gateway = Waypost(self.folder / "gateway.log", *arguments)

    @property
    def data(self) -> Path:
        return self.folder / "gw1"

    def publish(self, tag: str, *, count: int = SENT, addresses: Sequence[int] = range(ADDRESSES)) -> None:
        with mqtt_client(self.gateway, "d") as client:
            for number in range(count):
                body = f"{tag}:{number}".encode()
                client.publish(f"load/{addresses[number % len(addresses)]}", body, 1)
                self.acked.append(body)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows(self.folder / "hub" / "lake", table)

    def bodies(self) -> Counter[bytes]:
        return Counter(row["body"] for row in self.rows("telemetry"))

    def arrived(self) -> None:
        wait_until(lambda: set(self.acked) <= set(self.bodies()), timeout_s=60, what="all that was acked has landed")

    def unexplained(self) -> set[tuple[str, str, int]]:
        """Return the sequences below the highest landed one, by epoch and address, that neither landed nor are in the
        ledger.
        """
        there = {(row["epoch"], row["address"], row["sequence"]) for row in self.rows("telemetry")}
        given = {
            (row["epoch"], row["address"], number)
            for row in self.rows("ledger")
            for number in range(row["first_sequence"], row["last_sequence"] + 1)
        }
        ends: dict[tuple[str, str], int] = {}
        for epoch, address, sequence in there:
            ends[epoch, address] = max(ends.get((epoch, address), 0), sequence)
        return {(*place, number) for place, end in ends.items() for number in range(end)} - there - given


def stopped(gateway: Waypost) -> None:
    assert gateway.stop() == 0
