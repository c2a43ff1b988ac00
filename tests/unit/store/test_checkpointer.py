"""The log is moved in parts beside the commits, begun anew, and no part begins where SQLite could damage the file."""

from __future__ import annotations

import errno
import logging
import os
import random
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge.broker.store.checkpointer import AGAIN_S, HURRY, LONGEST, PART, REST, Checkpointer
from edge.broker.store.limits import Limits
from tests.support.medium import fast_folder
from tests.support.processes import wait_until

LIMITS = Limits(checkpoint_bytes=2_000_000)
BODY = b"x" * 3_000
FRAME_BYTES = 4_120
COMMIT_BYTES = 3 * FRAME_BYTES
"""A row on a page of its own, the page of the tree, and the first one, as the file grows."""
PART_FRAMES = int(PART * LIMITS.checkpoint_bytes) // FRAME_BYTES


class Held(sqlite3.Connection):
    """Its checkpoints wait at the gate, and say how far the log was moved before them."""

    gate: threading.Event
    begun: threading.Event
    found: list[tuple[int, int]]
    first_pages: set[bytes]
    """As the file has had it before any of them."""

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            self.found.append(moved(self.path))
            with self.path.open("rb") as file:
                self.first_pages.add(file.read(LIMITS.page_bytes))
            self.begun.set()
            assert self.gate.wait(20)
        return super().execute(sql, *parameters)

    path: Path


def moved(path: Path) -> tuple[int, int]:
    """(frames moved, frames there), out of the log's index (https://sqlite.org/walformat.html section 2.1)."""
    index = Path(f"{path}-shm").read_bytes()
    return struct.unpack_from("=I", index, 96)[0], struct.unpack_from("=I", index, 16)[0]


class Site:
    """A database with a writer and its checkpointer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = self.connect()
        self.own.execute("PRAGMA journal_mode = WAL").fetchall()
        self.own.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        self.own.execute("CREATE TABLE message (body BLOB)")
        self.beside = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Held)
        self.beside.path, self.beside.found, self.beside.first_pages = path, [], set()
        self.beside.gate, self.beside.begun = threading.Event(), threading.Event()
        self.beside.gate.set()
        self.checkpointer = Checkpointer(path, self.own, self.beside, self.connect(), LIMITS)
        self.committed = 0

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self.own.execute("INSERT INTO message VALUES (?)", (BODY,))
            self.committed += 1
            self.checkpointer.committed(COMMIT_BYTES)

    def commit_until_begun(self) -> None:
        while not (self.passing or self.beside.begun.is_set()):
            self.commit()
        assert self.beside.begun.wait(20)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    @property
    def passing(self) -> bool:
        return any(thread.name == "store-checkpoint" for thread in threading.enumerate())

    def wait_for_the_pass(self) -> None:
        wait_until(lambda: not self.passing, timeout_s=20, what="the pass is over", every_s=0.001)

    @property
    def log_bytes(self) -> int:
        return Path(f"{self.path}-wal").stat().st_size


@pytest.fixture
def site() -> Iterator[Site]:
    with TemporaryDirectory(dir=fast_folder()) as folder:
        made = Site(Path(folder) / "store.sqlite")
        yield made
        made.beside.gate.set()
        made.checkpointer.stop()
        made.own.close()
        made.checkpointer.close()
        with closing(made.connect()) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("SELECT count(*) FROM message").fetchone() == (made.committed,)


def test_commits_go_on_during_a_pass(site: Site) -> None:
    site.beside.gate.clear()
    site.commit_until_begun()
    assert site.passing
    before = site.committed
    site.commit(10)
    assert site.passing
    assert site.committed == before + 10
    assert moved(site.path)[0] == 0


def test_what_came_during_a_pass_is_moved_by_a_short_one_and_the_rest_between_two_commits(site: Site) -> None:
    site.beside.gate.clear()
    site.commit_until_begun()
    site.commit(3)
    site.beside.gate.set()
    site.wait_for_the_pass()
    parts = len(site.beside.found)
    site.commit(1)
    site.wait_for_the_pass()
    assert len(site.beside.found) == parts + 1
    moved_beside, there = moved(site.path)
    assert moved_beside == there > LIMITS.checkpoint_bytes // FRAME_BYTES // 2
    site.commit(2)
    assert len(site.beside.found) == parts + 1
    assert moved(site.path)[1] < 10, "it is begun anew"


def test_a_pass_is_made_of_parts_that_write_each_page_once(site: Site) -> None:
    site.commit_until_begun()
    site.wait_for_the_pass()
    assert [moved for moved, _ in site.beside.found] == [part * PART_FRAMES for part in range(len(site.beside.found))]
    assert len(site.beside.found) > 4
    assert len(site.beside.first_pages) == 1, "every commit changes it, and the last part alone writes it"


def test_a_pass_that_the_log_outgrows_has_no_pauses_and_moves_what_is_left_at_once(site: Site) -> None:
    site.beside.gate.clear()
    site.commit_until_begun()
    site.commit(int((HURRY - 1) * LIMITS.checkpoint_bytes // COMMIT_BYTES) + 1)
    site.beside.gate.set()
    site.wait_for_the_pass()
    assert [moved for moved, _ in site.beside.found] == [0, PART_FRAMES]


def test_who_waits_for_a_pass_has_no_pauses_and_what_is_left_at_once(site: Site) -> None:
    site.beside.gate.clear()
    site.commit_until_begun()
    stopping = threading.Thread(target=site.checkpointer.no_room, args=(10.0,))
    stopping.start()
    wait_until(site.checkpointer._hurry.is_set, timeout_s=20, what="it waits", every_s=0.001)
    site.beside.gate.set()
    stopping.join()
    assert [moved for moved, _ in site.beside.found] == [0, PART_FRAMES]


def test_who_reads_sees_what_there_was_whatever_is_moved_meanwhile(site: Site) -> None:
    """Also where more read than there are marks, so that they share them, ours among them."""
    dice = random.Random(20_261_123)
    site.own.execute("CREATE TABLE number (at INTEGER PRIMARY KEY, value INTEGER, padding BLOB)")
    site.own.execute("INSERT INTO number VALUES (1, 0, zeroblob(3000)), (2, 0, zeroblob(3000)), (3, 0, zeroblob(3000))")
    readers: deque[tuple[sqlite3.Connection, int]] = deque()
    for value in range(4_000):
        site.own.execute("UPDATE number SET value = ?", (value,))
        site.checkpointer.committed(4 * FRAME_BYTES)
        if dice.random() < 0.05:
            reader = site.connect()
            reader.execute("BEGIN")
            assert reader.execute("SELECT value FROM number").fetchall() == [(value,)] * 3
            readers.append((reader, value))
        while len(readers) > 8 or (readers and dice.random() < 0.04):
            reader, seen = readers.popleft()
            assert reader.execute("SELECT value FROM number").fetchall() == [(seen,)] * 3
            reader.close()
    for reader, _ in readers:
        reader.close()
    assert len(site.beside.found) > 20
    assert any(there - moved > 100 for moved, there in site.beside.found)


def test_where_somebody_reads_an_old_place_few_passes_are_tried(site: Site) -> None:
    site.commit(5)
    with closing(site.connect()) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM message").fetchone() == (5,)
        site.commit_until_begun()
        for _ in range(LIMITS.checkpoint_bytes // COMMIT_BYTES // 2):
            site.commit()
            site.wait_for_the_pass()
        assert len(site.beside.found) == 2, "one that got to that place, and one that got nowhere"


def test_the_log_stays_short_however_much_is_written(site: Site) -> None:
    site.commit(2_000)
    assert site.log_bytes < (LONGEST + REST) * LIMITS.checkpoint_bytes
    assert len(site.beside.found) > 2_000 * COMMIT_BYTES / LIMITS.checkpoint_bytes / LONGEST / 2


def test_a_part_begins_with_something_left_to_move(site: Site) -> None:
    """https://sqlite.org/wal.html#walresetbug needs one that begins when all is moved, while somebody commits."""
    site.commit(3_000)
    assert site.beside.found
    assert all(moved < there for moved, there in site.beside.found)


def test_commits_that_left_nothing_begin_no_pass(site: Site) -> None:
    """They failed: the log is as it was, moved to its end, and the next commit begins it anew."""
    site.commit(5)
    site.own.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for _ in range(3 * LIMITS.checkpoint_bytes // COMMIT_BYTES):
        site.checkpointer.committed(COMMIT_BYTES)
    site.wait_for_the_pass()
    assert not site.beside.found
    site.commit_until_begun()


def test_commits_wait_for_a_pass_when_the_log_is_too_long(site: Site) -> None:
    site.beside.gate.clear()
    site.commit_until_begun()
    writing = threading.Thread(target=site.commit, args=(1_000,))
    writing.start()
    try:
        longest = LONGEST * LIMITS.checkpoint_bytes
        wait_until(lambda: site.committed * COMMIT_BYTES >= longest, timeout_s=20, what="the log is long")
        writing.join(0.05)  # whether it waits shows only in time: too short a look would pass, never fail, by mistake
        assert site.committed * COMMIT_BYTES < longest + 2 * COMMIT_BYTES
    finally:
        site.beside.gate.set()
        writing.join()
    assert site.log_bytes < (LONGEST + REST) * LIMITS.checkpoint_bytes


def test_a_pass_that_fails_is_logged_and_tried_again_after_as_much(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.beside.set_progress_handler(lambda: 1, 1)  # SQLite gives up: SQLITE_INTERRUPT
    a_round = LIMITS.checkpoint_bytes // COMMIT_BYTES + 1
    with caplog.at_level(logging.WARNING):
        site.commit_until_begun()
        site.wait_for_the_pass()
        site.commit()
        assert len(caplog.records) == 1
        assert "checkpoint" in caplog.text
        site.commit(a_round - 2)
        assert len(site.beside.found) == 1
        site.commit(2)
        site.wait_for_the_pass()
        assert len(site.beside.found) == 2
    site.beside.set_progress_handler(None, 0)
    site.commit(3 * a_round)
    assert moved(site.path)[1] * FRAME_BYTES < (LONGEST + REST) * LIMITS.checkpoint_bytes


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_failed_sync_may_have_lost_is_moved_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """What a part moved, SQLite counts as moved without a sync."""
    answers = [errno.EIO] if fails else []

    def fdatasync(descriptor: int) -> None:
        if answers:
            raise OSError(answers.pop(), "the medium failed")
        synced(descriptor)

    synced = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    site.commit(20)
    with closing(site.connect()) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM message").fetchone() == (20,)  # no pass goes further
        site.commit_until_begun()
        site.wait_for_the_pass()
    assert (moved(site.path)[0] == 0) == fails
    site.commit(3 * LIMITS.checkpoint_bytes // COMMIT_BYTES)
    assert not answers
    assert moved(site.path)[1] * FRAME_BYTES < (LONGEST + REST) * LIMITS.checkpoint_bytes


def test_without_another_thread_the_writer_does_it_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    site.commit(2_000)
    assert not site.beside.found
    assert site.log_bytes < (1 + REST) * LIMITS.checkpoint_bytes


def test_a_full_medium_begins_the_log_anew_before_its_time(site: Site) -> None:
    site.commit(5)
    site.checkpointer.no_room(10.0)
    assert moved(site.path)[0] == moved(site.path)[1] > 0
    site.commit(2)
    assert moved(site.path)[1] < 10, "it is begun anew"
    site.checkpointer.no_room(10.0 + AGAIN_S / 2)
    assert moved(site.path)[0] == 0, "not for each message that is refused"
    site.checkpointer.no_room(10.0 + AGAIN_S)
    assert moved(site.path)[0] == moved(site.path)[1]


def test_what_a_former_process_left_counts(site: Site) -> None:
    beside = site.connect()
    later = Checkpointer(site.path, site.own, beside, site.connect(), LIMITS, logged_bytes=LIMITS.checkpoint_bytes - 1)
    site.commit()
    assert moved(site.path)[0] == 0
    later.committed(1)
    later.stop()
    assert moved(site.path)[0] == moved(site.path)[1] > 0
    later.close()
