"""Bytes of a commit when messages may wait to be gathered; the content of the store stays the same."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from pathlib import Path

import pytest

from bridge.message import Run
from edge.appliance.store.recovery.inspection import Inspection
from edge.broker.store.limits import PAGE_BYTES_WAITING, StoreLimits
from edge.broker.store.segment import is_packed
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, sqlite_rig

DEVICES = 100
BODY_BYTES = 100
COMMITS = 70
"""Enough for one that counts and deletes (`StoreLimits.counted_commits_max`)."""
BLOCK_BYTES = 4096
"""Smallest write of a file system: the last block of a commit is written again with the next one."""


def publish(rig: Rig, log: int) -> None:
    """Publish a message of each device, with incompressible bytes."""
    for number in range(DEVICES):
        address, device = f"load/{number}/data", f"mqttload-{number}"
        rig.store.logs.append(log, Run(address, device, 0, b"", [os.urandom(BODY_BYTES)], 10**18 + number * 10**6))


def frames(path: Path) -> tuple[int, int]:
    """Return (frames, page size) of the present content of the write-ahead log (https://sqlite.org/fileformat2.html
    section 4.1)."""
    data = path.with_name(path.name + "-wal").read_bytes()
    page, salts = struct.unpack_from(">I", data, 8)[0], data[16:24]
    count = 0
    while data[32 + count * (page + 24) + 8 :][:8] == salts:
        count += 1
    return count, page


def written_per_payload_byte(rig: Rig, path: Path, log: int) -> float:
    cursor = rig.store.cursors.open("c", log, 0)
    rig.commit()
    before, _ = frames(path)
    for _ in range(COMMITS):
        publish(rig, log)
        rig.commit()
        first, end = rig.store.logs.bounds(log)
        rig.store.cursors.acknowledge(cursor, first, end - 1)
    count, page = frames(path)
    written = (count - before) * (page + 24) + COMMITS * BLOCK_BYTES
    return written / (COMMITS * DEVICES * BODY_BYTES)


@pytest.mark.parametrize(("page", "delay_s", "most"), [(PAGE_BYTES_WAITING, 0.1, 2.2), (4096, 0.1, 3.4)])
def test_thousand_messages_a_second_take_ten_commits(tmp_path: Path, page: int, delay_s: float, most: float) -> None:
    rig = sqlite_rig(tmp_path, StoreLimits(page_bytes=page))
    log = rig.store.logs.open("a")
    rig.store.logs.delay(log, delay_s)
    factor = written_per_payload_byte(rig, tmp_path / FILE_NAME, log)
    rig.store.close()
    assert 1.0 < factor <= most


def test_only_gathered_logs_are_compressed(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    waiting, prompt = rig.store.logs.open("waiting"), rig.store.logs.open("prompt")
    for log in (waiting, prompt):
        rig.store.cursors.open("c", log, 0)
    rig.store.logs.delay(waiting, 0.1)
    for log in (waiting, prompt):
        publish(rig, log)
    rig.commit()
    with Inspection.open(tmp_path / FILE_NAME) as inspection:
        packed = {log: [is_packed(row) for row in inspection.segments_inside(log)] for log in (waiting, prompt)}
    assert packed == {waiting: [True], prompt: [False]}
    assert [body for *_, body in rig.read_all(waiting)] != [body for *_, body in rig.read_all(prompt)]
    rig.store.close()


def test_crash_before_counting_loses_no_count(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    log = rig.store.logs.open("a")
    rig.store.cursors.open("c", log, 0)
    rig.store.logs.delay(log, 0.1)
    for _ in range(3):
        publish(rig, log)
        rig.commit()
    wanted = rig.read_all(log)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tmp_path.glob("store.*"):
        (copy / path.name).write_bytes(path.read_bytes())
    after = sqlite_rig(copy)
    assert after.store.logs.bounds(log) == (0, 3 * DEVICES)
    assert after.read_all(log) == wanted
    publish(after, log)
    assert {stored.sequence for _, stored in after.commit().appended} == {3}  # each device's fourth message
    after.store.close()
    rig.store.close()


def test_store_keeps_its_page_size(tmp_path: Path) -> None:
    for wanted in (PAGE_BYTES_WAITING, 4096):
        rig = sqlite_rig(tmp_path, StoreLimits(page_bytes=wanted))
        rig.store.logs.open(f"made with {wanted}")
        rig.commit()
        assert isinstance(rig.store.medium, SqliteMedium)
        assert rig.store.medium.limits.page_bytes == PAGE_BYTES_WAITING
        rig.store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
            assert connection.execute("PRAGMA page_size").fetchone() == (PAGE_BYTES_WAITING,)
