"""Messages that a gateway dropped while its uplink was down are in the lake's ledger; no others are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.configured_gateway import gateway_with
from tests.support.lake import rows
from tests.support.mosquitto import Mosquitto, installed
from tests.support.paho_client import mqtt_client, publish_messages
from tests.support.processes import free_port, hub, landing_soon, wait_until

RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.plant}},
  spec: {{address: plant/#, type: topic, quota: {{bytes: 5000}}, whenFull: dropOldest,
         forwarders: [{{name: up, remoteAddress: hub}}]}}}}
"""


def landed(telemetry: list[dict[str, Any]]) -> set[int]:
    return {row["sequence"] for row in telemetry}


def given_up(ledger: list[dict[str, Any]]) -> list[int]:
    return [n for entry in ledger for n in range(entry["first_sequence"], entry["last_sequence"] + 1)]


def test_every_sequence_has_landed_or_is_in_the_ledger(tmp_path: Path) -> None:
    lake, port = tmp_path / "hub" / "lake", free_port()
    sent = 150
    gateway = gateway_with(tmp_path, RESOURCES.format(port=port)).start()
    with mqtt_client(gateway, "d") as client:
        for number in range(sent):
            client.publish("plant/7", b"%0100d" % number, 1)
    gateway.kill()
    with gateway, mqtt_client(gateway, "d") as client:
        client.publish("plant/7", b"newest", 1)
        with hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)):
            wait_until(
                lambda: landed(rows(lake, "telemetry")) | set(given_up(rows(lake, "ledger"))) == set(range(sent + 1)),
                timeout_s=60,
                what="every sequence is in the lake or explained",
            )
    assert not landed(rows(lake, "telemetry")) & set(given_up(rows(lake, "ledger")))
    assert 40 <= len(landed(rows(lake, "telemetry"))) <= 51
    ledger = rows(lake, "ledger")
    assert {(entry["gateway"], entry["address"], entry["reason"]) for entry in ledger} == {
        ("gw1", "plant/7", "evicted")
    }
    assert sum(entry["bytes"] for entry in ledger) == 100 * len(given_up(ledger))


CONNECTED = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}},
         connectors: [{{name: hall, type: mqtt, endpointHosts: [{{host: 127.0.0.1, port: {broker}}}]}}]}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.plant}},
  spec: {{address: plant/#, type: topic,
         forwarders: [{{name: up, remoteAddress: hub}},
                      {{name: from-hall, remoteAddress: hall/far/#, direction: in}}]}}}}
"""


def _reaches_the_lake(broker: Mosquitto, lake: Path) -> bool:
    """Send a small message; return True once the connector's subscription has it."""
    publish_messages(broker.port, "far/small", [b"before"])
    return bool(rows(lake, "telemetry"))


@installed
def test_message_above_the_limit_of_a_connector_is_in_the_ledger(tmp_path: Path) -> None:
    """Mosquitto accepts and acknowledges the message, then drops it."""
    lake, port = tmp_path / "hub" / "lake", free_port()
    broker = Mosquitto(tmp_path / "mosquitto")
    gateway = gateway_with(tmp_path, CONNECTED.format(port=port, broker=broker.port))
    with broker.running(), hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)), gateway:
        wait_until(
            lambda: _reaches_the_lake(broker, lake), timeout_s=60, every_s=0.5, what="the connector has subscribed"
        )
        publish_messages(broker.port, "far/big", [bytes(17_000_000)])
        publish_messages(broker.port, "far/small", [b"after"])
        wait_until(lambda: len(rows(lake, "ledger")) == 1, timeout_s=60, what="the loss is in the lake")
        wait_until(
            lambda: b"after" in {row["body"] for row in rows(lake, "telemetry")},
            timeout_s=60,
            what="the next message landed",
        )
    (entry,) = rows(lake, "ledger")
    assert (entry["gateway"], entry["address"]) == ("gw1", "$inbound/hall/default.plant/from-hall")
    assert entry["reason"] == "inbound-too-large"
    assert (entry["first_sequence"], entry["last_sequence"], entry["bytes"]) == (0, 0, 17_000_017)
