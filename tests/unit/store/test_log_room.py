"""Room in the write-ahead log: small commits find it, large ones make none, and to who reads the log it is nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge.broker.store import log_room
from edge.broker.store.connections import connect_writer
from edge.broker.store.limits import Limits
from edge.broker.store.log_room import SMALL_BYTES, STEP_BYTES, LogRoom
from edge.broker.store.wal_frames import lost_commits
from edge.broker.store.wal_index import LogIndex

LIMITS = Limits()
COMMIT_BYTES = 2 * LIMITS.page_bytes


class Site:
    """A database whose log has room made for it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.sqlite"
        self.log = folder / "store.sqlite-wal"
        self.connection = connect_writer(self.path, LIMITS)
        self.connection.execute("CREATE TABLE t (x)")
        self.index = LogIndex(self.path)
        self.room = LogRoom(self.path, self.connection, self.index, LIMITS)

    def commit(self, log_bytes: int = COMMIT_BYTES) -> None:
        self.connection.execute("INSERT INTO t VALUES (zeroblob(500))")
        self.room.committed(log_bytes)

    @property
    def log_bytes(self) -> int:
        return self.log.stat().st_size


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.connection.close()
    made.room.close()
    made.index.close()


def test_the_file_does_not_grow_with_each_small_commit(site: Site) -> None:
    sizes = set()
    for _ in range(100):
        site.commit()
        sizes.add(site.log_bytes)
    assert len(sizes) <= 1 + 100 * COMMIT_BYTES // STEP_BYTES


def test_it_ends_where_the_log_is_begun_anew(site: Site) -> None:
    while site.index.frames * LIMITS.page_bytes < LIMITS.checkpoint_bytes:
        site.connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    before = site.log_bytes
    site.commit()
    assert site.log_bytes - before < STEP_BYTES


def test_a_large_commit_makes_none(site: Site) -> None:
    site.commit(SMALL_BYTES + 1)
    assert site.log_bytes < STEP_BYTES


def test_the_room_is_no_frame(site: Site) -> None:
    """Of a gateway that was killed: another connection reads the log from its file, its index is gone."""
    for _ in range(50):
        site.commit()
    copy = site.path.with_name("copy.sqlite")
    copy.write_bytes(site.path.read_bytes())
    copy.with_name("copy.sqlite-wal").write_bytes(site.log.read_bytes())
    assert lost_commits(copy) == 0
    with closing(sqlite3.connect(copy)) as other:
        assert other.execute("SELECT count(*) FROM t").fetchone() == (50,)


def test_a_medium_without_room_is_asked_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def full(*_: object) -> int:
        asked.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_room.os, "pwrite", full)
    for _ in range(3):
        site.commit()
    assert len(asked) == 1
    assert site.connection.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_while_another_program_writes_none_is_made(site: Site) -> None:
    site.connection.execute("PRAGMA busy_timeout = 0")
    before = site.log_bytes
    with closing(sqlite3.connect(site.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        site.room.committed(COMMIT_BYTES)
        assert site.log_bytes == before
        other.execute("ROLLBACK")
    site.commit()
    assert site.log_bytes >= STEP_BYTES
