"""An older copy of a gateway's data is put back: it goes on under a new epoch, and the lake has every message once."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edge.broker.store.sqlite import FILE_NAME
from tests.integration.test_gateway_clients import Client
from tests.support.lake import rows
from tests.support.processes import Waypost, edge, free_port, hub, wait_until

SENT = 60
ADDRESSES = 3


class Fleet:
    """A hub and a gateway that forwards to it; both are started by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.hub = hub(folder, f"--amqp=127.0.0.1:{port}")
        uplink = (f"--hub=amqp://127.0.0.1:{port}", "--gateway=gw1", "--forward=load/#")
        self.gateway = edge(folder, "gw1", *uplink)
        self.acked: list[bytes] = []

    @property
    def data(self) -> Path:
        return self.folder / "gw1"

    def publish(self, tag: str) -> None:
        with Client(self.gateway, "d") as client:
            for number in range(SENT):
                body = f"{tag}:{number}".encode()
                client.publish(f"load/{number % ADDRESSES}", body, 1)
                self.acked.append(body)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows(self.folder / "hub" / "lake", table)

    def bodies(self) -> Counter[bytes]:
        return Counter(row["body"] for row in self.rows("telemetry"))

    def arrived(self) -> None:
        wait_until(lambda: set(self.acked) <= set(self.bodies()), timeout_s=60, what="all that was acked has landed")

    def unexplained(self) -> set[tuple[str, str, int]]:
        """Sequences below the highest that landed of an epoch and address, and neither landed nor in the ledger."""
        there = {(row["epoch"], row["address"], row["sequence"]) for row in self.rows("telemetry")}
        given = {
            (row["epoch"], row["address"], number)
            for row in self.rows("ledger")
            for number in range(row["first_sequence"], row["last_sequence"] + 1)
        }
        ends: dict[tuple[str, str], int] = {}
        for epoch, address, sequence in there:
            ends[epoch, address] = max(ends.get((epoch, address), 0), sequence)
        return {(*place, number) for place, end in ends.items() for number in range(end)} - there - given


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def stopped(gateway: Waypost) -> None:
    assert gateway.stop() == 0


def test_the_whole_directory(fleet: Fleet) -> None:
    """Messages of before the copy, of between copy and return, of after it with and without the hub."""
    gateway, copy = fleet.gateway, fleet.folder / "copy"
    with gateway:
        fleet.publish("not-yet-sent")  # there is no hub yet: the copy has these, and the card sends them later
        stopped(gateway)
    shutil.copytree(fleet.data, copy)
    with fleet.hub:
        with gateway:
            fleet.publish("after-the-copy")
            fleet.arrived()
            stopped(gateway)
        with gateway:
            fleet.publish("another-start")
            fleet.arrived()
            stopped(gateway)
    epochs = {row["epoch"] for row in fleet.rows("telemetry")}
    shutil.rmtree(fleet.data)
    shutil.copytree(copy, fleet.data)
    with gateway:
        fleet.publish("restored-offline")
        stopped(gateway)
    with gateway:
        fleet.publish("restored-offline-again")
        with fleet.hub:
            fleet.arrived()
            fleet.publish("restored-online")
            fleet.arrived()
            stopped(gateway)
    bodies = fleet.bodies()
    assert set(bodies) == set(fleet.acked)
    assert max(bodies.values()) == 1
    assert fleet.unexplained() == set()
    assert len(epochs) == 1
    after = {row["epoch"] for row in fleet.rows("telemetry") if row["body"].startswith(b"restored")}
    assert len(after) == 1
    assert after != epochs
    assert "older copy" in gateway.log.read_text()


def test_restarts_and_broken_connections_are_no_copies(fleet: Fleet) -> None:
    with fleet.gateway:
        for tag in ("one", "two"):
            with fleet.hub:
                fleet.publish(tag)
                fleet.arrived()
                assert fleet.hub.stop() == 0
        fleet.gateway.kill()
        fleet.gateway.start()
        with fleet.hub:
            fleet.publish("three")
            fleet.arrived()
    assert len({row["epoch"] for row in fleet.rows("telemetry")}) == 1
    assert max(fleet.bodies().values()) == 1


def test_the_store_s_file_alone(fleet: Fleet) -> None:
    """Noticed without a hub, by the file beside it."""
    gateway = fleet.gateway
    with gateway:
        fleet.publish("one")
        stopped(gateway)
    copy = (fleet.data / FILE_NAME).read_bytes()
    with fleet.hub:
        with gateway:
            fleet.publish("two")
            fleet.arrived()
            stopped(gateway)
        (fleet.data / FILE_NAME).write_bytes(copy)
        with gateway:
            fleet.publish("three")
            fleet.arrived()
            stopped(gateway)
    with sqlite3.connect(fleet.data / FILE_NAME) as connection:
        assert connection.execute("SELECT count(*) FROM epoch").fetchone() == (2,)
    connection.close()
    assert max(fleet.bodies().values()) == 1
    assert fleet.unexplained() == set()
