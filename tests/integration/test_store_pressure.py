"""Answers of each protocol at a full address, messages that dropOldest drops, and batched acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from proton import Message
from proton.utils import SendException

from tests.support.amqp_client import amqp_client
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import ask
from tests.support.paho_client import CLOSED, mqtt_client
from tests.support.processes import Waypost, wait_until
from tests.support.store_rows import query

WAIT_S = 20.0

RESOURCES = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {listeners:
  {mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default},
  spec: {authenticationService: {name: none}, quota: {bytes: 1Mi}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.small},
  spec: {address: small, type: queue, quota: {bytes: 1000}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.ring},
  spec: {address: ring, type: queue, quota: {bytes: 2000}, whenFull: dropOldest}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.slow},
  spec: {address: slow, type: queue, durability: "batch:300"}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.fast}, spec: {address: fast, type: queue}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateway_with(tmp_path_factory.mktemp("pressure"), RESOURCES) as running:
        yield running


def test_full_queue_refuses_in_every_protocol_and_accepts_again(gateway: Waypost) -> None:
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        assert [publisher.publish_code("small", b"x" * 100) for _ in range(10)] == [0] * 10
        assert publisher.publish_code("small", b"x") == 0x97
    with mqtt_client(gateway, "old") as old:
        assert old.publish_code("small", b"x") == CLOSED, "MQTT 3.1.1 has no answer that refuses a message"
    assert ask(gateway, "POST", "/t/small", b"x").status == 507
    with amqp_client(gateway) as amqp:
        sender = amqp.create_sender("small")
        assert sender.link.credit == 0
        receiver = amqp.create_receiver("small", credit=10)
        for _ in range(10):
            assert len(receiver.receive(timeout=WAIT_S).body) == 100
            receiver.accept()
        sender.send(Message(body=b"room again"), timeout=WAIT_S)
        with pytest.raises(SendException):
            amqp.create_sender("fast").send(Message(body=b"x" * (1 << 20)), timeout=WAIT_S)
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        assert publisher.publish_code("small", b"x") == 0


def number_in(message: Message) -> int:
    return int(bytes(message.body))  # its memory belongs to the message, which the caller still holds


def test_drop_oldest_keeps_the_newest_and_the_ledger_names_the_rest(gateway: Waypost) -> None:
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        for number in range(100):
            assert publisher.publish_code("ring", b"%0100d" % number) == 0
    with amqp_client(gateway) as amqp:
        receiver = amqp.create_receiver("ring", credit=100)
        first = number_in(receiver.receive(timeout=WAIT_S))
        rest = [number_in(receiver.receive(timeout=WAIT_S)) for _ in range(99 - first)]
        assert rest == list(range(first + 1, 100))
        assert 15 <= 100 - first <= 20
    entries = query(gateway.data, "SELECT first, last, messages, bytes, reason FROM ledger WHERE address = 'ring'")
    assert entries == [(0, first - 1, first, first * 100, "evicted")]


def test_a_batched_acknowledgement_waits_for_its_commit(gateway: Waypost) -> None:
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        assert publisher.publish_code("slow", b"makes the queue") == 0
        began = time.monotonic()
        assert publisher.publish_code("slow", b"x") == 0
        assert time.monotonic() - began >= 0.29
        waiting = [publisher.client.publish("slow", b"waits", 1) for _ in range(3)]
        assert publisher.publish_code("fast", b"takes them along") == 0
        assert [publisher.code_of(each) for each in waiting] == [0, 0, 0]


def test_figures_are_on_the_status_page(gateway: Waypost) -> None:
    def stored() -> dict[str, int]:
        status = ask(gateway, "GET", "/api/v1/status").document
        return {entry["address"]: entry["stored"] for entry in status["addresses"]}

    wait_until(lambda: stored().get("slow") == 5, timeout_s=WAIT_S, what="the status page shows what is stored")
