"""Frames that SQLite rejects in a write-ahead log: a commit that was cut off, or commits that were once durable."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from edge.broker.store.wal_frames import FRAME, HEADER, SECTOR_BYTES, SUMMED_BYTES, lost_commits

PAGE_BYTES = 1024
FRAME_BYTES = FRAME.size + PAGE_BYTES
ROWS = 60


def offset(number: int) -> int:
    """Return the offset of a frame in the log."""
    return HEADER.size + number * FRAME_BYTES


SPLIT = next(number for number in range(ROWS) if (offset(number) + SUMMED_BYTES) % SECTOR_BYTES == 0)
"""A frame with the boundary of two sectors between its mark of a commit's end and its checksum."""


@pytest.fixture
def turns(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """Return (database, log of commits of one page each, the log restarted with one commit of many pages over it)."""
    path = tmp_path / "a.sqlite"
    log = path.with_name("a.sqlite-wal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in (f"page_size = {PAGE_BYTES}", "journal_mode = WAL", "wal_autocheckpoint = 0"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, data BLOB)")
        connection.executemany("INSERT INTO t VALUES (?, zeroblob(900))", ((key,) for key in range(ROWS)))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for key in range(ROWS):
            connection.execute("UPDATE t SET data = randomblob(900) WHERE key = ?", (key,))
        one_each = log.read_bytes()
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        database = path.read_bytes()
        connection.execute("UPDATE t SET data = randomblob(900)")
        together = log.read_bytes()
    assert len(one_each) == len(together) == offset(ROWS)
    path.write_bytes(database)
    return path, one_each, together


def lost(path: Path, log: bytes) -> int:
    path.with_name(f"{path.name}-wal").write_bytes(log)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    return lost_commits(path)


def test_complete_log_lost_nothing(turns: tuple[Path, bytes, bytes]) -> None:
    path, one_each, together = turns
    assert (lost(path, one_each), lost(path, together)) == (0, 0)


def test_truncated_commit_was_not_durable(turns: tuple[Path, bytes, bytes]) -> None:
    """Any sectors of the commit may have reached the medium; the others hold frames of the log before its restart."""
    path, old, new = turns
    for number in range(1, ROWS - 1):
        log = bytearray(new)
        for torn in (offset(0), offset(number)):
            begin = torn - torn % SECTOR_BYTES if torn > SECTOR_BYTES else HEADER.size
            end = torn - torn % SECTOR_BYTES + SECTOR_BYTES
            log[begin:end] = old[begin:end]
        assert lost(path, bytes(log)) == 0, number


def test_commit_mark_alone_is_not_sufficient(turns: tuple[Path, bytes, bytes]) -> None:
    """The sector of the mark is old, the sector of the checksum is new, and the next frame continues from it."""
    _, old, new = turns
    begin = offset(SPLIT)
    mark = slice(begin + 4, begin + SUMMED_BYTES)
    assert old[mark] != bytes(4) == new[mark]


@pytest.mark.parametrize("number", [1, SPLIT - 1, ROWS - 3])
def test_damage_in_the_middle_lost_durable_commits(turns: tuple[Path, bytes, bytes], number: int) -> None:
    path, old, _ = turns
    log = bytearray(old)
    log[offset(number) + FRAME.size + 7] ^= 1
    assert lost(path, bytes(log)) > 0


def test_damaged_header_is_detected_by_later_frames(turns: tuple[Path, bytes, bytes]) -> None:
    path, old, _ = turns
    log = bytearray(old)
    log[offset(SPLIT) + FRAME.size + 7] ^= 1
    assert lost(path, bytes(log)) > 0
