"""Messages of an address with `durability: memory` never reach the card.

The lake accounts for every acknowledged message: after a kill, after a stop, and after an overflow of the ring.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.appliance.store.recovery.verification import verify
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import FILE_NAME
from tests.support.configured_gateway import gateway_with
from tests.support.lake import rows
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, free_port, hub, landing_soon, wait_until

RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.plant}},
  spec: {{address: plant/#, type: topic, durability: memory, forwarders: [{{name: up, remoteAddress: hub}}]}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.jobs}},
  spec: {{address: jobs, type: queue, durability: memory}}}}
"""


class Gateway:
    """Gateway with addresses in memory, and the hub that it forwards to, if any."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hub_port = folder, free_port()
        self.process = gateway_with(folder, RESOURCES.format(port=self.hub_port))
        self.file = folder / "gw" / FILE_NAME

    def hub(self) -> Waypost:
        return hub(self.folder, f"--amqp=127.0.0.1:{self.hub_port}", *landing_soon(self.folder))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows(self.folder / "hub" / "lake", table)

    def ask(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def written_bytes(self) -> int:
        """Return the bytes that the process has written to files so far."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(tmp_path)
    with made.process:
        yield made


def numbers(ledger: list[dict[str, Any]]) -> set[int]:
    return {n for entry in ledger for n in range(entry["first_sequence"], entry["last_sequence"] + 1)}


def test_messages_forwarded_from_memory_are_not_written(gateway: Gateway) -> None:
    body, sent = b"x" * 1000, 2000
    with gateway.hub(), mqtt_client(gateway.process, "d") as client:
        client.publish("plant/7", body, 1)
        wait_until(lambda: len(gateway.rows("telemetry")) == 1, timeout_s=60, what="the first message has landed")
        before = gateway.written_bytes()
        for _ in range(sent):
            client.client.publish("plant/7", body, 1)
        client.publish("plant/7", body, 1)
        wait_until(lambda: len(gateway.rows("telemetry")) == sent + 2, timeout_s=60, what="all has landed")
        written = gateway.written_bytes() - before
    rows = gateway.rows("telemetry")
    assert sorted(row["sequence"] for row in rows) == list(range(sent + 2))
    assert written < 0.2 * sent * len(body)
    assert gateway.rows("ledger") == []


@pytest.mark.parametrize("qos", [1, 2])
def test_queue_in_memory_waits_for_its_consumer_and_ends_with_the_process(gateway: Gateway, qos: int) -> None:
    with mqtt_client(gateway.process, "p") as producer:
        with mqtt_client(gateway.process, "c") as consumer:
            consumer.subscribe("jobs", qos)
            for n in range(100):
                producer.publish("jobs", b"%d" % n, qos)
            assert consumer.bodies(100) == [b"%d" % n for n in range(100)]
        for n in range(100, 150):
            producer.publish("jobs", b"%d" % n, qos)
        with mqtt_client(gateway.process, "c") as consumer:
            consumer.subscribe("jobs", qos)
            assert consumer.bodies(50) == [b"%d" % n for n in range(100, 150)]
        for n in range(150, 160):
            producer.publish("jobs", b"%d" % n, qos)
        assert gateway.ask("SELECT count(*) FROM segment") == [(0,)]
        gateway.process.kill()
    gateway.process.start()
    with mqtt_client(gateway.process, "c") as consumer, mqtt_client(gateway.process, "p") as producer:
        consumer.subscribe("jobs", qos)
        producer.publish("jobs", b"newest", qos)
        assert consumer.bodies(1) == [b"newest"]
    lost = {n for first, last in gateway.ask("SELECT first, last FROM ledger") for n in range(first, last + 1)}
    assert lost >= set(range(150, 160))


def test_after_a_kill_every_acknowledged_message_is_in_the_lake_or_its_ledger(gateway: Gateway) -> None:
    with gateway.hub(), mqtt_client(gateway.process, "d") as client:
        for n in range(60):
            client.publish("plant/7", b"landed %d" % n, 1)
        wait_until(lambda: len(gateway.rows("telemetry")) == 60, timeout_s=60, what="the first have landed")
    with mqtt_client(gateway.process, "d") as client:
        late = 0
        until = time.monotonic() + 1
        while time.monotonic() < until:
            client.publish("plant/7", b"in memory", 1)
            late += 1
        gateway.process.kill()
    assert not verify(gateway.file).damaged
    gateway.process.start()
    with mqtt_client(gateway.process, "d") as client:
        client.publish("plant/7", b"newest", 1)
        with gateway.hub():
            wait_until(
                lambda: any(row["body"] == b"newest" for row in gateway.rows("telemetry")),
                timeout_s=60,
                what="the newest has landed",
            )
            wait_until(lambda: bool(gateway.rows("ledger")), timeout_s=60, what="the ledger has landed")
    telemetry, ledger = gateway.rows("telemetry"), gateway.rows("ledger")
    landed = {row["sequence"] for row in telemetry}
    newest = max(landed)
    assert len(landed) == len(telemetry)
    assert landed | numbers(ledger) == set(range(newest + 1))
    assert {row["body"] for row in telemetry} >= {b"landed %d" % n for n in range(60)}
    assert newest >= 60 + late
    assert {(entry["address"], entry["reason"]) for entry in ledger} == {("plant/7", "memory")}
    assert "only in memory are lost" in gateway.process.log.read_text()


def test_orderly_stop_records_exactly_the_messages_in_memory(gateway: Gateway) -> None:
    with mqtt_client(gateway.process, "d") as client:
        for n in range(50):
            client.publish("plant/7", b"%d" % n, 1)
    assert gateway.process.stop() == 0
    assert not verify(gateway.file).findings
    assert gateway.ask("SELECT next FROM address WHERE name = 'plant/7'") == [(50,)]
    assert gateway.ask("SELECT first, last, messages, reason FROM ledger") == [(0, 49, 50, "memory")]
    assert gateway.ask("SELECT count(*) FROM segment") == [(0,)]
    gateway.process.start()
    with mqtt_client(gateway.process, "d") as client, gateway.hub():
        client.publish("plant/7", b"newest", 1)
        wait_until(lambda: bool(gateway.rows("telemetry")), timeout_s=60, what="the newest has landed")
        wait_until(lambda: bool(gateway.rows("ledger")), timeout_s=60, what="the ledger has landed")
    assert [row["sequence"] for row in gateway.rows("telemetry")] == [50]
    assert numbers(gateway.rows("ledger")) == set(range(50))


def test_overflowing_ring_has_one_ledger_entry_and_delivers_the_newest(gateway: Gateway) -> None:
    body, sent = b"x" * 200_000, 160
    with mqtt_client(gateway.process, "d") as client:
        for n in range(sent):
            client.publish("plant/7", b"%d " % n + body, 1)
        assert gateway.written_bytes() < sent * len(body) // 2
        with gateway.hub():
            wait_until(
                lambda: any(row["body"].startswith(b"159 ") for row in gateway.rows("telemetry")),
                timeout_s=60,
                what="the newest has landed",
            )
            wait_until(lambda: bool(gateway.rows("ledger")), timeout_s=60, what="the ledger has landed")
    landed = sorted(row["sequence"] for row in gateway.rows("telemetry"))
    (entry,) = gateway.rows("ledger")
    assert (entry["address"], entry["reason"], entry["first_sequence"]) == ("plant/7", "evicted", 0)
    assert landed == list(range(entry["last_sequence"] + 1, sent))
    assert len(landed) * len(body) <= StoreLimits().memory_bytes_max
