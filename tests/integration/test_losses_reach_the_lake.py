"""What a gateway gave up while its uplink was down is in the lake's ledger, and nothing else is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.test_gateway_clients import Client
from tests.support.lake import rows
from tests.support.processes import Waypost, free_port, hub, wait_until

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


def test_every_sequence_is_there_or_explained(tmp_path: Path) -> None:
    lake, port = tmp_path / "hub" / "lake", free_port()
    (tmp_path / "gateway.yaml").write_text(RESOURCES.format(port=port))
    arguments = ("edge", "run", "--data", str(tmp_path / "gw"), "--config", str(tmp_path / "gateway.yaml"))
    sent = 150
    gateway = Waypost(tmp_path / "gateway.log", *arguments).start()
    with Client(gateway, "d") as client:
        for number in range(sent):
            client.publish("plant/7", b"%0100d" % number, 1)
    gateway.kill()
    with gateway, Client(gateway, "d") as client:
        client.publish("plant/7", b"newest", 1)
        with hub(tmp_path, f"--amqp=127.0.0.1:{port}"):
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
