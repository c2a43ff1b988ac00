"""Messages of devices made for Hono reach the lake under Hono's addresses, with their device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.support.hono import TENANT, WAIT_S, HonoDevice, resources
from tests.support.processes import Waypost, hub, wait_until


def rows(lake: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(lake / "telemetry")):
        return []
    columns = ["address", "device", "content_type", "body"]
    found: list[dict[str, Any]] = DeltaTable(str(lake / "telemetry")).to_pyarrow_table(columns=columns).to_pylist()
    return found


def test_telemetry_and_events_reach_the_lake(tmp_path: Path) -> None:
    (tmp_path / "hono.yaml").write_text(resources())
    with hub(tmp_path) as cloud:
        forward = ["--hub", f"amqp://127.0.0.1:{cloud.port('amqp')}", "--gateway", "gw1"]
        forward += ["--forward", "telemetry/#", "--forward", "event/#"]
        data = ["--data", str(tmp_path / "gw"), "--config", str(tmp_path / "hono.yaml")]
        with Waypost(tmp_path / "gw.log", "run", *data, *forward) as gateway:
            with HonoDevice(gateway, "gw") as device:
                device.publish("t//4712/?content-type=application%2Fjson", b'{"temp": 5}', 1)
                device.publish("t", b"6", 0)
                device.publish("e//lamp", b"alarm", 1)
            lake = tmp_path / "hub" / "lake"
            wait_until(lambda: len(rows(lake)) >= 3, timeout_s=2 * WAIT_S, what="three rows in the lake")
    found = {(row["address"], row["device"]): (row["content_type"], bytes(row["body"])) for row in rows(lake)}
    assert found == {
        (f"telemetry/{TENANT}", "4712"): ("application/json", b'{"temp": 5}'),
        (f"telemetry/{TENANT}", "gw-1"): ("application/octet-stream", b"6"),
        (f"event/{TENANT}", "lamp"): ("application/octet-stream", b"alarm"),
    }
