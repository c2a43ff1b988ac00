"""A full address space thins telemetry and drops pictures so that events are accepted; the counts add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from tests.support.amqp_client import amqp_client
from tests.support.command import output_of
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import ask
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, wait_until
from tests.support.store_rows import query

WAIT_S = 30.0

RESOURCES = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {listeners:
  {mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default},
  spec: {authenticationService: {name: none}, quota: {bytes: 200Ki}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.events},
  spec: {address: events, type: queue, quota: {reserve: 20Ki}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.telemetry},
  spec: {address: telemetry, type: queue, whenFull: thin, quota: {reserve: 10Ki}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.pictures},
  spec: {address: pictures, type: queue, whenFull: dropOldest, priority: 2, quota: {reserve: 30Ki}}}
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with gateway_with(tmp_path, RESOURCES) as running:
        yield running


def rooms(gateway: Waypost) -> dict[str, dict[str, Any]]:
    status = ask(gateway, "GET", "/api/v1/status").document
    assert status["store"]["quota"] == 200 * 1024
    return {room["address"]: room for room in status["store"]["room"]}


def ledger(gateway: Waypost) -> dict[tuple[str, str], int]:
    """Return the number of dropped messages, by address and reason."""
    entries = query(gateway.data, "SELECT address, reason, sum(messages) FROM ledger GROUP BY 1, 2")
    return {(address, reason): messages for address, reason, messages in entries}


def take(gateway: Waypost, address: str, count: int) -> list[bytes]:
    with mqtt_client(gateway, f"taker-{address}", version=5) as client:
        client.subscribe(address)
        got = client.bodies(count)
        while not client.received.empty():
            got.append(client.take().payload)
    return got


def test_events_are_accepted_while_addresses_of_lower_priority_give_room(gateway: Waypost) -> None:
    counts = {"telemetry": 0, "pictures": 0, "events": 0}
    with mqtt_client(gateway, "publisher", version=5) as publisher:

        def publish(address: str, body: bytes) -> int:
            answer = publisher.publish_code(address, body)
            counts[address] += answer == 0
            return answer

        for number in range(100):
            assert publish("pictures", b"%01000d" % number) == 0
        for number in range(700):
            assert publish("telemetry", b'{"t": %d, "id": "%0120d"}' % (number, 0)) == 0
        before = rooms(gateway)
        assert list(before) == ["telemetry", "pictures", "events"], "the order in which they give way"
        assert ledger(gateway).keys() <= {("telemetry", "thinned"), ("telemetry", "evicted")}, "it thins itself first"
        while publish("events", b"e" * 1000) == 0:
            assert counts["events"] < 200
    wait_until(lambda: rooms(gateway)["events"]["refused"] == 1, timeout_s=WAIT_S, what="status has the refusal")
    after = rooms(gateway)
    assert counts["events"] * 1000 == after["events"]["used"] > 130_000
    assert 10 * 1024 <= after["telemetry"]["used"] <= before["telemetry"]["used"]
    assert 30 * 1024 <= after["pictures"]["used"] < 32 * 1024, "down to its reserve, to the message"
    assert sum(room["used"] for room in after.values()) <= 200 * 1024 + 1000
    lost = ledger(gateway)
    assert ("telemetry", "thinned") in lost
    assert {address for address, _ in lost} == {"telemetry", "pictures"}
    printed = output_of("status", "--http", f"127.0.0.1:{gateway.port('http')}")
    assert "thin" in printed
    assert "space: 0.2 MB" in printed
    assert len(take(gateway, "events", counts["events"])) == counts["events"]
    for address in ("telemetry", "pictures"):
        left = counts[address] - sum(count for (name, _), count in lost.items() if name == address)
        got = take(gateway, address, left)
        assert len(got) == left, "what was sent is there or in the ledger"
    wait_until(
        lambda: sum(room["used"] for room in rooms(gateway).values()) == 0, timeout_s=WAIT_S, what="all is taken"
    )


def test_readings_of_amqp_senders_are_thinned(tmp_path: Path) -> None:
    resources = RESOURCES.replace('http: "127.0.0.1:0"', 'http: "127.0.0.1:0", amqp: "127.0.0.1:0"')
    with gateway_with(tmp_path, resources) as gateway, amqp_client(gateway, timeout_s=WAIT_S) as connection:
        sender = connection.create_sender("telemetry")
        for number in range(1_500):
            body = {"t": number, "pad": "x" * 150}
            sender.send(Message(id=number, subject="temperature", durable=True, body=body), timeout=WAIT_S)
        lost = ledger(gateway)
        assert lost.keys() == {("telemetry", "thinned")}
        receiver = connection.create_receiver("telemetry", credit=100)
        stands_for, last = 0, -1
        while last < 1_499:
            message = receiver.receive(timeout=WAIT_S)
            receiver.accept()
            last = message.body["t"]
            assert (message.id, message.subject) == (last, "temperature")
            thinned = message.body.get("thinned")
            marked = (message.annotations or {}).get("x-opt-waypost-thinned", 1)
            assert marked == (thinned["messages"] if thinned else 1)
            stands_for += marked
        assert stands_for == 1_500, "every reading counts once"
