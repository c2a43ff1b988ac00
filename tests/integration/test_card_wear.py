"""Bytes that a gateway reports to have written to its card: while it runs, after restarts, and when stopped."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.support.command import document_of, items_of, output_of
from tests.support.http_client import ask, status
from tests.support.processes import Waypost, edge, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0
RESOURCES = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: worn}, spec: {storage: {enduranceTerabytes: 60}, listeners:
  {mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.plant},
  spec: {address: "plant/#", type: queue, durability: "DURABILITY"}}
"""


def counted(gateway: Waypost, payload_bytes: int) -> None:
    """Wait until the status has this many bytes of bodies."""

    def there() -> bool:
        return int(status(gateway)["store"]["wear"]["payload_bytes"]) >= payload_bytes

    wait_until(there, timeout_s=WAIT_S, what="bodies are counted")


def publish(gateway: Waypost, messages: int) -> int:
    """Publish messages; return the bytes of bodies that the gateway has acknowledged."""
    publisher = Publisher("device", gateway.port("mqtt"), "plant/1")
    publisher.start()
    try:
        wait_until(lambda: len(publisher.acked) >= messages, timeout_s=WAIT_S, what="messages acknowledged")
    finally:
        publisher.end()
    return sum(map(len, publisher.acked))


@pytest.mark.parametrize(("durability", "page"), [("fsync", 4096), ("batch:100", 1024), ("memory", 1024)])
def test_page_size_follows_durability_and_totals_survive_restarts(tmp_path: Path, durability: str, page: int) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(RESOURCES.replace("DURABILITY", durability))
    gateway = edge(tmp_path, "gw", "--config", str(config))
    published = 0
    for _ in range(2):
        with gateway:
            published += publish(gateway, 20)
            if durability != "memory":
                counted(gateway, published)
            text = ask(gateway, "GET", "/metrics").body.decode()
            assert "waypost_store_payload_bytes_total" in text
            assert "waypost_device_endurance_bytes{" in text
            shown = output_of("status", "--http", f"127.0.0.1:{gateway.port('http')}")
            assert "of running" in shown
            assert "60.0 TB" in " ".join(shown.split())
            assert gateway.stop() == 0
        info = document_of("store", "info", "--data", str(tmp_path / "gw"))
        assert info["page_bytes"] == page
        assert info["wear"]["payload_bytes"] >= (published if durability != "memory" else 0)
        assert info["wear"]["running_s"] > 0
        assert "of running" in output_of("store", "info", "--data", str(tmp_path / "gw"))


def test_high_write_amplification_is_reported_with_the_next_step(tmp_path: Path) -> None:
    config, data = tmp_path / "gateway.yaml", str(tmp_path / "gw")
    config.write_text(RESOURCES.replace("DURABILITY", "fsync"))
    assert "ready" in output_of("init", "--data", data)
    with contextlib.closing(sqlite3.connect(tmp_path / "gw" / "store.sqlite")) as store, store:
        row = (0, 720.0, 720_000, 50_400_000, 435_000_000_000)  # 12 minutes of 20 messages/s; others wrote more
        store.execute(
            "INSERT INTO wear (hour, seconds, payload_bytes, process_bytes, device_bytes) VALUES (?,?,?,?,?)", row
        )
    with edge(tmp_path, "gw", "--config", str(config)) as gateway:
        shown = output_of("status", "--http", f"127.0.0.1:{gateway.port('http')}")
        gateway.stop()
    told = output_of("store", "info", "--data", data)
    found = items_of("doctor", "--data", data)
    [worn] = [one for one in found if one["name"] == "card wear"]
    assert (worn["level"], "durability: batch:100" in worn["next_step"]) == ("warn", True)
    for text in (shown, told, worn["seen"]):
        words = " ".join(text.split())
        assert "a day by the gateway" in words
        assert words.index("by the gateway") < words.index("by all programs")
    for text in (shown, told):
        assert "durability: batch:100" in " ".join(text.split())
