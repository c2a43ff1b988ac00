"""What a gateway gave up while its uplink was down is in the lake's ledger, and nothing else is missing."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.integration.test_gateway_clients import Client
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


def test_every_sequence_is_there_or_explained(tmp_path: Path) -> None:
    lake, port = tmp_path / "hub" / "lake", free_port()

    def rows(table: str) -> list[dict[str, object]]:
        found = lake / table
        return list(DeltaTable(found).to_pyarrow_table().to_pylist()) if found.exists() else []

    (tmp_path / "gateway.yaml").write_text(RESOURCES.format(port=port))
    arguments = ("edge", "run", "--data", str(tmp_path / "gw"), "--config", str(tmp_path / "gateway.yaml"))
    sent = 150
    gateway = Waypost(tmp_path / "gateway.log", *arguments).start()
    with Client(gateway, "d") as client:
        for number in range(sent):
            client.publish("plant/7", b"%0100d" % number, 1)
    gateway.kill()
    with gateway, hub(tmp_path, f"--amqp=127.0.0.1:{port}"), Client(gateway, "d") as client:
        client.publish("plant/7", b"newest", 1)

        def sequences() -> set[object]:
            return {row["sequence"] for row in rows("telemetry")}

        wait_until(lambda: sent in sequences(), timeout_s=60, what="the newest message is in the lake")
        wait_until(lambda: bool(rows("ledger")), timeout_s=30, what="the ledger is in the lake")
        landed = sequences()
        ledger = rows("ledger")
    given_up = {
        n for entry in ledger for n in range(int(str(entry["first_sequence"])), int(str(entry["last_sequence"])) + 1)
    }
    assert landed | given_up == set(range(sent + 1))
    assert not landed & given_up
    assert 40 <= len(landed) <= 51
    assert {(entry["gateway"], entry["address"], entry["reason"]) for entry in ledger} == {
        ("gw1", "plant/7", "evicted")
    }
    assert sum(int(str(entry["bytes"])) for entry in ledger) == 100 * len(given_up)
