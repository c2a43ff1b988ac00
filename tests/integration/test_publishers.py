"""The device of a message is the user that sent it, over every protocol; the message keeps its client too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection

from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.command import output_of
from tests.support.configured_gateway import address, basic, gateway_with, resources, user
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge

RESOURCES = resources(
    address("topics", "topic/#", "topic"),
    user("pump7", "send, recv", password="secret"),
    space="authenticationService: {name: standard}, defaultType: queue",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("publishers")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Waypost]:
    with gateway_with(folder, RESOURCES) as running:
        yield running


def exported(data: Path, address: str) -> list[tuple[str, str]]:
    """Return (device, client) of the messages of a queue."""
    printed = output_of("store", "export", "--data", str(data), "--address", address, "--out", "-")
    records = [json.loads(line) for line in printed.splitlines()]
    return [(record["device"], record.get("client", record["device"])) for record in records]


def publish(client: Raw, topic: str) -> None:
    client.send(packets.Publish(topic, b"20", 1, packet_id=9))
    while not isinstance(client.receive(), packets.PubAck):
        pass


@pytest.mark.parametrize("version", [4, 5])
def test_user_is_the_device_over_mqtt_with_any_client_identifier(gateway: Waypost, folder: Path, version: int) -> None:
    queue = f"mqtt/{version}"
    for client_id in ("boss", ""):
        with Raw(gateway, version) as client:
            publish(client.connect(client_id, username="pump7", password=b"secret"), queue)
    (first, second) = exported(folder / "gw", queue)
    assert first == ("pump7", "boss")
    assert (second[0], second[1].startswith("auto-")) == ("pump7", True)


def test_user_is_the_device_over_amqp_and_http(gateway: Waypost, folder: Path) -> None:
    url = f"amqp://pump7:secret@127.0.0.1:{gateway.port('amqp')}"
    connection = BlockingConnection(url, timeout=20, allowed_mechs="PLAIN", container_id="c1")
    connection.create_sender("amqp/in").send(Message(body="20"))
    connection.close()
    [(device, client)] = exported(folder / "gw", "amqp/in")
    assert (device, client != "pump7") == ("pump7", True)
    assert ask(gateway, "POST", "/t/http/in", b"20", basic("pump7", "secret")).status == 202
    assert exported(folder / "gw", "http/in") == [("pump7", "pump7")]


def test_without_credentials_the_client_identifier_is_the_device(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        for client_id in ("sensor-1", ""):
            with Raw(gateway) as client:
                publish(client.connect(client_id), "queue/in")
        (first, second) = exported(tmp_path / "gw", "queue/in")
    assert first == ("sensor-1", "sensor-1")
    assert (second[0], second[1].startswith("auto-")) == ("anonymous", True)


def test_no_local_leaves_out_messages_of_the_client_only(gateway: Waypost) -> None:
    with Raw(gateway, 5) as own, Raw(gateway, 5) as other:
        kept = Properties(session_expiry_interval_s=100)
        own.connect("own", username="pump7", password=b"secret", properties=kept)
        other.connect("other", username="pump7", password=b"secret")
        own.send(packets.Subscribe(1, (SubscriptionRequest("topic/#", 1, no_local=True),)))
        assert isinstance(own.receive(), packets.SubAck)
        own.send(packets.Publish("topic/own", b"1", 1, packet_id=2))
        assert isinstance(own.receive(), packets.PubAck)
        publish(other, "topic/other")
        received = own.receive()
        assert isinstance(received, packets.Publish)
        assert received.topic == "topic/other"
