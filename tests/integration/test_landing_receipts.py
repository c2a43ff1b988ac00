"""Landing receipts end to end: real clients get them once the hub has their messages in the lake, across kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from cryptography import x509
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message

from bridge.landing_receipt import REQUEST, WANTED, read_receipt
from edge.appliance.receipts.verification import verify
from tests.support.amqp_client import amqp_client
from tests.support.command import run_waypost
from tests.support.configured_gateway import gateway_with
from tests.support.lake import rows
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, free_port, hub, landing_soon, wait_until

WAIT_S = 40.0
RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.plant}},
  spec: {{address: plant/#, type: topic, receipts: landed, forwarders: [{{name: up, remoteAddress: hub}}]}}}}
"""


class LandingFleet:
    """A hub and a gateway with receipts, and the certificate that receipts are verified with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.hub = hub(folder, f"--amqp=127.0.0.1:{port}", *landing_soon(folder))
        self.gateway = gateway_with(folder, RESOURCES.format(port=port))

    @property
    def authority(self) -> Path:
        return self.folder / "hub" / "authority" / "ca.pem"

    def landed(self, body: bytes) -> bool:
        return any(row["body"] == body for row in rows(self.folder / "hub" / "lake", "telemetry"))

    def check(self, body: bytes, sent: bytes) -> dict[str, Any]:
        """Verify a receipt, and that the message it names is in the lake at the version it states."""
        found = read_receipt(body)
        statement = verify(found, x509.load_pem_x509_certificate(self.authority.read_bytes()))
        names = (found.gateway, found.epoch, found.address, found.sequence)
        there = rows(self.folder / "hub" / "lake", "telemetry")
        (row,) = [row for row in there if (row["gateway"], row["epoch"], row["address"], row["sequence"]) == names]
        assert row["body"] == sent
        assert (statement.table, statement.outcome.value) == ("telemetry", "landed")
        document: dict[str, Any] = json.loads(body)
        return document


class RequestingDevice(PahoClient):
    """MQTT 5 device that requests a receipt for each message."""

    def __init__(self, gateway: Waypost, name: str) -> None:
        super().__init__(paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5))
        self.connect(gateway.port("mqtt"))

    def send(self, topic: str, body: bytes, correlation: bytes) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [(REQUEST, WANTED)]
        properties.CorrelationData = correlation
        info = self.client.publish(topic, body, 1, properties=properties)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LandingFleet]:
    made = LandingFleet(tmp_path_factory.mktemp("fleet"))
    with made.hub, made.gateway:
        yield made


def test_mqtt_device_gets_a_receipt_that_can_be_verified(fleet: LandingFleet) -> None:
    with RequestingDevice(fleet.gateway, "pump7") as device:
        device.subscribe("landing-receipt/pump7")
        device.send("plant/7/temp", b"21.5", b"reading 1")
        message = device.take()
    assert message.properties.CorrelationData == b"reading 1"
    fleet.check(message.payload, b"21.5")
    kept = fleet.folder / "receipt.json"
    kept.write_bytes(message.payload)
    shown = run_waypost("receipt", "verify", str(kept), "--authority", str(fleet.authority))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "message 0 of plant/7/temp is in the lake: table telemetry, version " in shown.stdout
    forged = message.payload.replace(b'"sequence":0', b'"sequence":9')
    refused = run_waypost("receipt", "verify", "-", "--authority", str(fleet.authority), stdin=forged.decode())
    assert refused.returncode == 4
    assert "the signed statement is about other messages" in refused.stderr


def test_amqp_device_gets_a_receipt_with_its_correlation(fleet: LandingFleet) -> None:
    with amqp_client(fleet.gateway, allowed_mechs="ANONYMOUS", container_id="press1") as device:
        sender = device.create_sender("plant/8/count")
        made = Message(id="m1", body=b"17", reply_to="landing-receipt/press1", properties={REQUEST: WANTED})
        sender.send(made)
        receiver = device.create_receiver("landing-receipt/press1", credit=1)
        receipt = receiver.receive(WAIT_S)
        receiver.accept()
    assert receipt.correlation_id == "m1"
    body = bytes(receipt.body)
    assert read_receipt(body).address == "plant/8/count"


@pytest.mark.slow
def test_receipts_survive_kills_of_hub_and_gateway(tmp_path: Path) -> None:
    """Whatever is killed, each message that was acknowledged gets a receipt, and only once it is in the lake."""
    made = LandingFleet(tmp_path)
    sent = {f"r{n}".encode(): f"body {n}".encode() for n in range(40)}
    with made.hub, made.gateway:
        for number, (correlation, body) in enumerate(sent.items()):
            with RequestingDevice(made.gateway, "pump7") as device:
                device.send("plant/7/temp", body, correlation)
            if number % 8 == 3:
                made.gateway.kill()
                made.gateway.start()
            if number % 8 == 6:
                made.hub.kill()
                made.hub.start()
        got: set[bytes] = set()
        with RequestingDevice(made.gateway, "pump7") as device:
            device.subscribe("landing-receipt/pump7")

            def collect() -> bool:
                while not device.received.empty():
                    message = device.take()
                    correlation = message.properties.CorrelationData
                    made.check(message.payload, sent[correlation])
                    got.add(correlation)
                return got == sent.keys()

            wait_until(collect, timeout_s=120, what="all receipts")


def test_no_receipt_while_the_hub_is_away(fleet: LandingFleet) -> None:
    fleet.hub.kill()
    with RequestingDevice(fleet.gateway, "pump9") as device:
        device.subscribe("landing-receipt/pump9")
        device.send("plant/9/temp", b"later", b"c")
        fleet.gateway.kill()
        fleet.gateway.start()
    with RequestingDevice(fleet.gateway, "pump9") as device:
        device.subscribe("landing-receipt/pump9")
        assert device.received.empty()
        fleet.hub.start()
        message = device.take()
    fleet.check(message.payload, b"later")
