"""A forwarder starts after messages were stored: the lake explains their missing sequences."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.support.http_client import status
from tests.support.paho_client import mqtt_client
from tests.support.processes import edge, hub, wait_until


def test_messages_before_the_forwarder_are_in_the_ledger(tmp_path: Path) -> None:
    lake = tmp_path / "hub" / "lake"

    def rows(table: str) -> list[dict[str, object]]:
        return list(DeltaTable(lake / table).to_pyarrow_table().to_pylist())

    with edge(tmp_path, "gw") as gateway, mqtt_client(gateway, "absent", clean=False) as keeper:
        keeper.subscribe("plant/#", 1)
        for number in range(3):
            keeper.publish("plant/7", b"early %d" % number, 1)
        assert keeper.bodies(3)
        assert gateway.stop() == 0
    with hub(tmp_path) as the_hub:
        arguments = [f"--hub=amqp://127.0.0.1:{the_hub.port('amqp')}", "--gateway=gw1", "--forward=plant/#"]
        with edge(tmp_path, "gw", *arguments) as gateway, mqtt_client(gateway, "p") as client:
            for address in ("plant/7", "plant/8"):
                client.publish(address, b"late", 1)
            wait_until(lambda: len(rows("telemetry")) == 2, timeout_s=30, what="both are in the lake")
            wait_until(lambda: len(rows("ledger")) == 1, timeout_s=30, what="the ledger has a range")
            epoch = status(gateway)["epoch"]
    assert {(row["address"], row["sequence"]) for row in rows("telemetry")} == {("plant/7", 3), ("plant/8", 0)}
    (entry,) = rows("ledger")
    assert (entry["gateway"], entry["epoch"], entry["address"]) == ("gw1", epoch, "plant/7")
    assert (entry["first_sequence"], entry["last_sequence"], entry["reason"]) == (0, 2, "before forwarder")
