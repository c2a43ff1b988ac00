"""Counters of `$SYS/broker` under Mosquitto's names, for real traffic of three protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message

from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.amqp_client import connect_amqp
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge

WAIT_S = 30.0
MESSAGES = 20
BODY = b"x" * 1_000


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with edge(tmp_path, "gw") as running:
        yield running


def figures(gateway: Waypost, names: str = "#") -> dict[str, str]:
    """Return values below `$SYS/broker` by name."""
    with Raw(gateway, 5).connect("watcher") as watcher:
        watcher.send(packets.Subscribe(1, (SubscriptionRequest(f"$SYS/broker/{names}", 0),)))
        watcher.send(packets.PingReq())
        found: dict[str, str] = {}
        while not isinstance(packet := watcher.receive(), packets.PingResp):
            if isinstance(packet, packets.Publish):
                found[packet.topic.removeprefix("$SYS/broker/")] = packet.payload.decode()
        return found


def carry(gateway: Waypost) -> None:
    """Publish `MESSAGES` over MQTT to an MQTT subscriber, as many over AMQP to a queue, and fetch one over HTTP."""
    with Raw(gateway, 5).connect("reader") as reader, Raw(gateway, 5).connect("writer") as writer:
        reader.subscribe("plant/#", qos=0)
        for number in range(1, MESSAGES + 1):
            writer.send(packets.Publish("plant/temp", BODY, qos=1, packet_id=number))
        for _ in range(MESSAGES):
            assert isinstance(writer.receive(), packets.PubAck)
        assert sum(isinstance(reader.receive(), packets.Publish) for _ in range(MESSAGES)) == MESSAGES
    connection = connect_amqp(gateway, timeout_s=WAIT_S)
    sender, receiver = connection.create_sender("queue/jobs"), connection.create_receiver("queue/jobs")
    for _ in range(MESSAGES):
        sender.send(Message(body=BODY))
        receiver.receive()
        receiver.accept()
    receiver.close()
    sender.send(Message(body=BODY))
    connection.close()
    assert ask(gateway, "GET", "/c/queue/jobs?settle=auto&wait=20", timeout_s=30.0).status == 200


def test_messages_bytes_and_their_averages_are_those_of_the_traffic(gateway: Waypost) -> None:
    before = figures(gateway)
    carry(gateway)
    received, sent = 2 * MESSAGES + 1, 2 * MESSAGES + 1
    deadline, shown_before = time.monotonic() + WAIT_S, len(before)
    while int((after := figures(gateway))["messages/received"]) - int(before["messages/received"]) < received:
        assert time.monotonic() < deadline  # the figures are those of the last tick
        shown_before += len(after)
    assert int(after["messages/received"]) - int(before["messages/received"]) == received
    assert after["publish/messages/received"] == after["messages/received"]
    # Figures sent to watchers count too; those of the last tick may arrive during the test.
    shown = shown_before + len(after)
    assert sent <= int(after["messages/sent"]) - int(before["messages/sent"]) <= sent + shown
    name = "load/messages/received/1min"
    while float(figures(gateway, name).get(name, 0)) == 0:  # none before the first tick
        assert time.monotonic() < deadline
        time.sleep(0.2)
    last = figures(gateway)
    payload = received * len(BODY)
    assert payload <= int(last["bytes/received"]) <= 1.5 * payload
    shown = 100 * (shown_before + 3 * len(last))
    assert payload <= int(last["bytes/sent"]) <= 1.5 * payload + shown, "these figures were sent as well"
    kinds = ("messages/received", "messages/sent", "publish/received", "publish/sent", "bytes/received", "bytes/sent")
    for kind in (*kinds, "connections"):
        averages = [float(last[f"load/{kind}/{minutes}min"]) for minutes in (1, 5, 15)]
        assert averages == sorted(averages, reverse=True), kind
        assert averages[-1] > 0, kind
