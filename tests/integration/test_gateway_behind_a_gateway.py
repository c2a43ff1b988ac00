"""A gateway forwards to another gateway: the lake names the first gateway and its device, if the user may relay."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.command import error_of, item_in, output_of, run_waypost
from tests.support.lake import rows
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, free_port, hub, landing_soon, wait_until

UPPER = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: upper}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0"}}, hub: {{url: "amqp://127.0.0.1:{hub}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: standard}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.plant}},
  spec: {{address: plant/#, type: topic, forwarders: [{{name: up, remoteAddress: hub}}]}}}}
---
{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: default.hall-3}},
  spec: {{username: hall-3, authentication: {{type: password, password: {password}}},
         authorization: [{{addresses: ["plant/#"], operations: [send]}}{relay}]}}}}
"""
LOWER = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: lower}}, spec: {{listeners: {{mqtt: "127.0.0.1:0"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}},
         connectors: [{{name: hall, type: {kind}, endpointHosts: [{{host: 127.0.0.1, port: {port}}}],
                       credentials: {{username: hall-3, password: secret}}}}]}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.line}},
  spec: {{address: line/#, type: topic, forwarders: [{{name: out, remoteAddress: hall/plant/line/#}}]}}}}
"""
RELAY = ", {operations: [relay]}"
SENT = 20


def landed_rows(folder: Path, kind: str, *, relay: str = RELAY) -> list[dict[str, Any]]:
    """Send over two gateways; return the rows of the lake by sequence."""
    lake, port = folder / "hub" / "lake", free_port()
    password = base64.b64encode(b"secret").decode()
    (folder / "upper.yaml").write_text(UPPER.format(hub=port, password=password, relay=relay))
    with hub(folder, f"--amqp=127.0.0.1:{port}", *landing_soon(folder)), gateway(folder, "upper") as upper:
        (folder / "lower.yaml").write_text(LOWER.format(kind=kind, port=upper.port(kind)))
        with gateway(folder, "lower") as lower:
            with mqtt_client(lower, "press-1") as client:
                for number in range(SENT):
                    client.publish("line/7", b"%d" % number, 1)
            wait_until(lambda: len(rows(lake, "telemetry")) >= SENT, timeout_s=60, what="everything has landed")
            assert lower.stop() == 0
        assert upper.stop() == 0
    return sorted(rows(lake, "telemetry"), key=lambda row: int(row["body"]))


def assert_proved(folder: Path) -> None:
    """Compare the lake with the sending gateway's store: complete, with a missing row, and with a duplicate."""
    file, lake = folder / "lower.json", folder / "hub" / "lake"
    output_of("store", "account", "--data", str(folder / "lower"), "--out", str(file))
    assert [(one["address"], one["first"], one["last"]) for one in json.loads(file.read_text())["addresses"]] == [
        ("line/7", 0, SENT - 1)
    ]
    proved = proof(lake, file)
    assert (proved["complete"], proved["streams"][0]["landed"]) == (True, SENT)
    assert proved["streams"][0]["gateway"] == "lower"
    telemetry = DeltaTable(lake / "telemetry")
    twice = telemetry.to_pyarrow_table().filter(pc.field("origin_sequence") == 11)
    write_deltalake(telemetry, twice, mode="append")
    DeltaTable(lake / "telemetry").delete("origin_sequence = 7")
    findings = [(one["kind"], one["first"], one["last"]) for one in proof(lake, file)["findings"]]
    assert findings == [("hole", 7, 7), ("twice", 11, 11)]


def proof(lake: Path, file: Path) -> dict[str, Any]:
    found = run_waypost("prove", "--lake", str(lake), "--account", str(file), "--json")
    document: dict[str, Any] = item_in(found.stdout)
    assert found.returncode == (0 if document["complete"] else 4)
    return document


def gateway(folder: Path, name: str) -> Waypost:
    arguments = ("run", "--data", str(folder / name), "--config", str(folder / f"{name}.yaml"))
    return Waypost(folder / f"{name}.log", *arguments)


@pytest.mark.parametrize("kind", ["amqp", "mqtt"])
def test_lake_names_the_lower_gateway_and_its_device(kind: str, tmp_path: Path) -> None:
    found = landed_rows(tmp_path, kind)
    assert [row["body"] for row in found] == [b"%d" % number for number in range(SENT)]
    assert {(row["gateway"], row["address"]) for row in found} == {("upper", "plant/line/7")}
    assert {(row["origin_gateway"], row["origin_address"], row["device"]) for row in found} == {
        ("lower", "line/7", "press-1")
    }
    assert [row["origin_sequence"] for row in found] == list(range(SENT))
    assert {row["relayed_by"] for row in found} == {"hall-3"}
    assert len({row["origin_epoch"] for row in found} | {row["epoch"] for row in found}) == 2
    assert all(row["origin_received_at"] <= row["received_at"] for row in found)
    assert all(row["event_time"] == row["origin_received_at"] for row in found)
    assert_proved(tmp_path)


@pytest.mark.parametrize("kind", ["amqp", "mqtt"])
def test_origin_of_a_user_without_the_relay_right_is_ignored(kind: str, tmp_path: Path) -> None:
    found = landed_rows(tmp_path, kind, relay="")
    assert {row["device"] for row in found} == {"hall-3"}
    names = [name for name in found[0] if name.startswith("origin_") or name == "relayed_by"]
    assert len(names) == 6
    assert all(row[name] is None for row in found for name in names)
    assert all("x-opt-waypost-gateway" in row["properties"] for row in found), "what it claims is kept as it came"


def test_account_lists_pending_messages_and_needs_a_forwarder(tmp_path: Path) -> None:
    """The gateway runs while its upstream gateway is away."""
    more = "remoteAddress: hall/plant/line/#}}, {{name: more, remoteAddress: hall/b/#}}"
    two = LOWER.replace("remoteAddress: hall/plant/line/#}}", more)
    (tmp_path / "lower.yaml").write_text(two.format(kind="amqp", port=free_port()))
    with gateway(tmp_path, "lower") as lower:
        with mqtt_client(lower, "press-1") as client:
            for number in range(SENT):
                client.publish("line/7", b"%d" % number, 1)
        arguments = ("store", "account", "--data", str(tmp_path / "lower"))
        assert "hall/default.line/more, hall/default.line/out" in error_of(*arguments, code=1)
        error_of(*arguments, "--forwarder", "hall/other", code=1)
        (one,) = json.loads(output_of(*arguments, "--forwarder", "hall/default.line/more"))["addresses"]
        assert (one["last"], one["waiting"], one["given_up"]) == (SENT - 1, [{"first": 0, "last": SENT - 1}], [])
