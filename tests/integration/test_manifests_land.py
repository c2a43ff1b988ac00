"""A gateway's manifests land in the lake, signed and chained, and match the landed messages."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bridge.manifest import GENESIS, ManifestStatement, digest_of
from tests.support.lake import manifests_asked_for, rows
from tests.support.paho_client import mqtt_client
from tests.support.processes import edge, free_port, hub, landing_soon, wait_until


def statement(row: dict[str, Any]) -> ManifestStatement:
    told = {name: row[name] for name in ManifestStatement.__struct_fields__}
    told |= {name: int(row[name].timestamp() * 1_000_000) * 1_000 for name in ("hour", "until")}
    return msgspec.convert({**told, "given_up": msgspec.json.decode(row["given_up"])}, ManifestStatement)


def test_accepted_messages_are_stated_in_the_lake(tmp_path: Path) -> None:
    lake, port = tmp_path / "hub" / "lake", free_port()
    gateway = edge(tmp_path, "gw1", f"--hub=amqp://127.0.0.1:{port}", "--gateway=gw1", "--forward=load/#")
    with hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)):
        with gateway, mqtt_client(gateway, "d") as client:
            for number in range(12):
                client.publish(f"load/{number % 3}", b"x", 1)
            client.publish("office/1", b"x", 1)
            wait_until(lambda: manifests_asked_for(tmp_path / "gw1"), timeout_s=30, what="the hub asks for manifests")
        with gateway:
            wait_until(
                lambda: sum(row["count"] for row in rows(lake, "manifests")) == 12, timeout_s=30, what="all stated"
            )
            wait_until(lambda: len(rows(lake, "telemetry")) == 12, timeout_s=30, what="everything has landed")
    found = sorted(rows(lake, "manifests"), key=lambda row: (row["address"], row["first_sequence"]))
    assert {row["address"] for row in found} == {f"load/{number}" for number in range(3)}
    newest: dict[str, tuple[int, str]] = {}
    for row in found:  # one for each address, or two if an hour has ended
        told = statement(row)
        assert (told.first_sequence, told.previous) == newest.get(told.address, (0, GENESIS))
        assert told.count == told.last_sequence + 1 - told.first_sequence
        assert told.digest == digest_of("gw1", told)
        newest[told.address] = (told.last_sequence + 1, told.digest)
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(row["public_key"].removeprefix("ed25519:")))
        key.verify(base64.b64decode(row["signature"]), row["digest"].encode())
