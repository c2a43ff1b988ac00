"""A store damaged in use, or repaired by hand: the gateway keeps running, and the lake accounts for the losses."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from edge.broker.store.limits import POSITION_BITS
from edge.broker.store.sqlite import FILE_NAME
from tests.support.command import item_in, output_of, run_waypost
from tests.support.lake import rows
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, free_port, hub, landing_soon, wait_until
from tests.support.stores import rot

SENT = 200


def names(lake: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return (address, sequence) of landed messages, and of those that the ledger lists as damaged."""
    landed = [(row["address"], row["sequence"]) for row in rows(lake, "telemetry")]
    lost = [
        (row["address"], number)
        for row in rows(lake, "ledger")
        if row["reason"] == "damaged"
        for number in range(row["first_sequence"], row["last_sequence"] + 1)
    ]
    return landed, lost


def largest(path: Path) -> tuple[int, int]:
    """Return (log, position) of the segment with the most messages."""
    with sqlite3.connect(path) as connection:
        (key,) = connection.execute("SELECT key FROM segment ORDER BY messages DESC, key LIMIT 1").fetchone()
    connection.close()
    return key >> POSITION_BITS, key & ((1 << POSITION_BITS) - 1)


def messages_in(path: Path, log: int, position: int) -> int:
    """Return the number of messages in one segment."""
    with sqlite3.connect(path) as connection:
        key = log << POSITION_BITS | position
        (count,) = connection.execute("SELECT messages FROM segment WHERE key = ?", (key,)).fetchone()
    connection.close()
    return int(count)


def verified(path: Path) -> tuple[int, int]:
    """Return (exit code, positions in damaged segments) of `store verify`."""
    done = run_waypost("store", "verify", "--json", "--data", str(path.parent))
    findings = [entry for entry in item_in(done.stdout)["findings"] if entry["code"] == "segment-damaged"]
    return done.returncode, sum(entry["last"] + 1 - entry["first"] for entry in findings)


def filled(folder: Path, hub_port: int) -> Waypost:
    """Return a stopped gateway with messages that never reached its hub."""
    gateway = edge(folder, "gw1", f"--hub=amqp://127.0.0.1:{hub_port}", "--gateway=gw1", "--forward=load/#")
    with gateway, mqtt_client(gateway, "d") as client:
        for number in range(SENT):
            client.publish(f"load/{number % 3}", b"%d" % number, 1)
        assert gateway.stop() == 0
    return gateway


def test_repaired_store_serves_and_forwards(tmp_path: Path) -> None:
    port, lake, path = free_port(), tmp_path / "hub" / "lake", tmp_path / "gw1" / FILE_NAME
    gateway = filled(tmp_path, port)
    rot(path, *largest(path))
    repaired = output_of("store", "repair", "--data", str(path.parent), "--yes")
    assert repaired.count("repaired and verified") == 1
    expected = {(f"load/{number % 3}", number // 3) for number in range(SENT + 3)}
    with (
        gateway,
        mqtt_client(gateway, "d") as client,
        hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)),
    ):
        for number in range(SENT, SENT + 3):
            client.publish(f"load/{number % 3}", b"%d" % number, 1)
        wait_until(
            lambda: expected <= set(names(lake)[0]) | set(names(lake)[1]), timeout_s=60, what="everything is explained"
        )
    landed, lost = names(lake)
    assert len(landed) == len(set(landed))
    assert lost
    assert not set(landed) & set(lost)
    assert set(landed) | set(lost) == expected


def test_damage_while_the_gateway_runs_is_in_the_ledger(tmp_path: Path) -> None:
    port, lake, path = free_port(), tmp_path / "hub" / "lake", tmp_path / "gw1" / FILE_NAME
    gateway = filled(tmp_path, port)
    expected = {(f"load/{number % 3}", number // 3) for number in range(SENT)}
    with gateway:
        where = largest(path)
        rotten = messages_in(path, *where)
        rot(path, *where)
        # The gateway may find the damage first, and then has dropped the segment already.
        assert verified(path) in {(4, rotten), (0, 0)}
        with hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)):
            wait_until(
                lambda: expected <= set(names(lake)[0]) | set(names(lake)[1]),
                timeout_s=60,
                what="everything is explained",
            )
        landed, lost = names(lake)
        assert len(landed) == len(set(landed))
        assert len(lost) == rotten > 0
        assert not set(landed) & set(lost)
        wait_until(lambda: verified(path) == (0, 0), timeout_s=30, what="the damaged segment is gone", every_s=0.5)


def test_store_without_its_first_page_is_restored(tmp_path: Path) -> None:
    """The repair restores every message: the gateway delivers each once and under its own name."""
    port, lake, path = free_port(), tmp_path / "hub" / "lake", tmp_path / "gw1" / FILE_NAME
    gateway = filled(tmp_path, port)
    with path.open("r+b") as file:
        file.write(bytes(4096))
    assert verified(path)[0] == 4
    repaired = output_of("store", "repair", "--data", str(path.parent), "--yes")
    assert f"kept: {SENT} messages" in repaired
    assert "repaired and verified" in repaired
    expected = {(f"load/{number % 3}", number // 3) for number in range(SENT + 3)}
    with (
        gateway,
        mqtt_client(gateway, "d") as client,
        hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)),
    ):
        for number in range(SENT, SENT + 3):
            client.publish(f"load/{number % 3}", b"%d" % number, 1)
        wait_until(lambda: expected <= set(names(lake)[0]), timeout_s=60, what="everything is in the lake")
    landed, lost = names(lake)
    assert (sorted(landed), lost) == (sorted(expected), [])
