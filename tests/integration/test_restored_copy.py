"""A gateway resumes from an older copy of its data under a new epoch; the lake has every message once."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from edge.broker.store.sqlite import FILE_NAME
from tests.support.uplinked_gateway import UplinkedGateway, stopped


@pytest.fixture
def fleet(tmp_path: Path) -> UplinkedGateway:
    return UplinkedGateway(tmp_path)


def test_restored_directory_loses_and_repeats_no_name(fleet: UplinkedGateway) -> None:
    """Restore with messages of before and after the copy, and after the restore with and without the hub."""
    gateway, copy = fleet.gateway, fleet.folder / "copy"
    with gateway:
        fleet.publish("not-yet-sent")  # no hub runs yet: the copy has these, and the original card sends them later
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


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_copy_of_a_running_gateway_is_restored(fleet: UplinkedGateway, durability: str) -> None:
    """A snapshot of a running gateway, which goes on forwarding, is restored before its next start."""
    if durability == "memory":
        fleet.keep_in_memory()
    gateway, copy = fleet.gateway, fleet.folder / "copy"
    with fleet.hub:
        with gateway:
            fleet.publish("before")
            fleet.arrived()
            snapshot(fleet.data, copy)
            for number in range(4):  # more than the reserved ones
                fleet.publish(f"after-the-copy-{number}")
            fleet.arrived()
            gateway.kill()
        epochs = {row["epoch"] for row in fleet.rows("telemetry")}
        shutil.rmtree(fleet.data)
        shutil.copytree(copy, fleet.data)
        with gateway:
            fleet.publish("restored")
            fleet.arrived()
            stopped(gateway)
        with gateway:
            fleet.publish("and-again")
            fleet.arrived()
            stopped(gateway)
    bodies = fleet.bodies()
    assert set(bodies) == set(fleet.acked)
    assert max(bodies.values()) == 1
    assert len(epochs) == 1
    assert len({row["epoch"] for row in fleet.rows("telemetry")}) == 2
    assert "older copy" in gateway.log.read_text()
    assert fleet.unexplained() == set()


def test_copy_with_reserved_positions_is_restored(fleet: UplinkedGateway) -> None:
    """An in-memory log may still have reserved positions when one of its addresses reserves sequences again."""
    fleet.keep_in_memory()
    gateway, copy = fleet.gateway, fleet.folder / "copy"
    with fleet.hub:
        with gateway:
            fleet.publish("slow", count=1, addresses=[0])
            fleet.publish("fast", count=200, addresses=[1])
            fleet.arrived()
            snapshot(fleet.data, copy)
            fleet.publish("after-the-copy", count=100, addresses=[0])
            fleet.arrived()
            gateway.kill()
        shutil.rmtree(fleet.data)
        shutil.copytree(copy, fleet.data)
        with gateway:
            fleet.publish("restored", addresses=[0])
            fleet.arrived()
            stopped(gateway)
        with gateway:
            fleet.publish("and-again", addresses=[0])
            fleet.arrived()
            stopped(gateway)
    bodies = fleet.bodies()
    assert set(bodies) == set(fleet.acked)
    assert max(bodies.values()) == 1
    assert len({row["epoch"] for row in fleet.rows("telemetry")}) == 2
    assert "older copy" in gateway.log.read_text()
    assert fleet.unexplained() == set()


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_killed_gateway_is_no_copy(fleet: UplinkedGateway, durability: str) -> None:
    if durability == "memory":
        fleet.keep_in_memory()
    with fleet.hub:
        for number in range(4):
            with fleet.gateway:
                fleet.publish(f"life-{number}")
                fleet.arrived()
                fleet.gateway.kill()
    assert len({row["epoch"] for row in fleet.rows("telemetry")}) == 1
    assert max(fleet.bodies().values()) == 1


def snapshot(data: Path, copy: Path) -> None:
    """Copy the database at one moment with the files next to it, as a file system or a volume does."""
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns(f"{FILE_NAME}*"))
    source, target = sqlite3.connect(data / FILE_NAME), sqlite3.connect(copy / FILE_NAME)
    with contextlib.closing(source), contextlib.closing(target):
        source.backup(target)


def test_restarts_and_broken_connections_are_no_copies(fleet: UplinkedGateway) -> None:
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


def test_restored_store_file_alone_is_detected(fleet: UplinkedGateway) -> None:
    """The file next to the store reveals the restore without a hub."""
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
