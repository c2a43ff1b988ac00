"""The log is checkpointed in the background and reset; no checkpoint starts where SQLite could damage the file."""

from __future__ import annotations

import errno
import logging
import os
import random
import sqlite3
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge.broker.store.checkpointer import Checkpointer
from edge.broker.store.limits import LOG_KEPT_TIMES_MAX, LOG_REST_SHARE, LOG_TIMES_MAX, NO_ROOM_PAUSE_S, StoreLimits
from edge.broker.store.problems import Problems
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, run_of, sqlite_rig
from tests.support.medium import fast_folder
from tests.support.processes import wait_until

LIMITS = StoreLimits(checkpoint_bytes=2_000_000, restart_wait_s=0.05)
BODY = b"x" * 3_000
FRAME_BYTES = 4_120
COMMIT_BYTES = 3 * FRAME_BYTES
"""Bytes of a row on a page of its own, the page of the tree, and the first page, as the file grows."""
COMMITS = LIMITS.checkpoint_bytes // COMMIT_BYTES
"""Commits that make a checkpoint due."""
LONGEST_BYTES = LOG_TIMES_MAX * LIMITS.checkpoint_bytes
SHORT_BYTES = (LOG_TIMES_MAX + LOG_REST_SHARE) * LIMITS.checkpoint_bytes
"""Largest size of a log that no reader holds back."""


class Held(sqlite3.Connection):
    """Connection that holds each checkpoint at a gate and records how far the log was checkpointed before it."""

    gate: threading.Event
    begun: threading.Event
    found: list[tuple[int, int]]
    path: Path

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            self.found.append(moved(self.path))
            self.begun.set()
            assert self.gate.wait(20)
        return super().execute(sql, *parameters)


def moved(path: Path) -> tuple[int, int]:
    """Return (checkpointed frames, all frames) from the index of the log (https://sqlite.org/walformat.html section
    2.1)."""
    index = Path(f"{path}-shm").read_bytes()
    return struct.unpack_from("=I", index, 96)[0], struct.unpack_from("=I", index, 16)[0]


class Site:
    """A database with a writer and its checkpointer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = self.connect()
        self.own.execute("PRAGMA journal_mode = WAL").fetchall()
        self.own.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        self.own.execute(f"PRAGMA journal_size_limit = {LONGEST_BYTES}").fetchall()
        self.own.execute("CREATE TABLE message (body BLOB)")
        self.background = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Held)
        self.background.path, self.background.found = path, []
        self.background.gate, self.background.begun = threading.Event(), threading.Event()
        self.background.gate.set()
        self.problems = Problems()
        self.checkpointer = Checkpointer(path, self.own, self.background, LIMITS, self.problems)
        self.committed = 0

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self.own.execute("INSERT INTO message VALUES (?)", (BODY,))
            self.committed += 1
            self.checkpointer.committed(COMMIT_BYTES)

    def commit_until_begun(self) -> None:
        while not (self.busy or self.background.begun.is_set()):
            self.commit()
        assert self.background.begun.wait(20)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    @property
    def busy(self) -> bool:
        """Return True while a background checkpoint runs."""
        return any(thread.name == "store-checkpoint" for thread in threading.enumerate())

    def wait_for_the_checkpoint(self) -> None:
        wait_until(lambda: not self.busy, timeout_s=20, what="the checkpoint is over", every_s=0.001)

    @property
    def log_bytes(self) -> int:
        return Path(f"{self.path}-wal").stat().st_size


@pytest.fixture
def site() -> Iterator[Site]:
    with TemporaryDirectory(dir=fast_folder()) as folder:
        made = Site(Path(folder) / "store.sqlite")
        yield made
        made.background.gate.set()
        made.checkpointer.stop()
        made.own.close()
        made.checkpointer.close()
        with closing(made.connect()) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("SELECT count(*) FROM message").fetchone() == (made.committed,)


def test_commits_continue_during_a_checkpoint(site: Site) -> None:
    site.background.gate.clear()
    site.commit_until_begun()
    assert site.busy
    before = site.committed
    site.commit(10)
    assert site.busy
    assert site.committed == before + 10
    assert moved(site.path)[0] == 0


def test_commits_made_meanwhile_are_moved_between_two_commits(site: Site) -> None:
    site.background.gate.clear()
    site.commit_until_begun()
    site.commit(3)
    site.background.gate.set()
    site.wait_for_the_checkpoint()
    site.commit(2)
    assert len(site.background.found) == 1, "so little is moved by the writer's thread"
    assert moved(site.path)[1] < 10, "the log is reset"


def test_many_commits_made_meanwhile_cause_another_checkpoint(site: Site) -> None:
    site.background.gate.clear()
    site.commit_until_begun()
    site.commit(int(LOG_REST_SHARE * COMMITS) + 1)
    site.background.gate.set()
    site.wait_for_the_checkpoint()
    site.commit(2)
    site.wait_for_the_checkpoint()
    assert len(site.background.found) == 2
    site.commit(2)
    assert moved(site.path)[1] < 10, "the log is reset"


def test_readers_see_their_snapshot_during_a_checkpoint(site: Site) -> None:
    """Readers keep their snapshot, even when more of them read than SQLite has slots, so that they share slots."""
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
    assert len(site.background.found) > 1


def test_few_checkpoints_are_tried_while_a_program_reads(site: Site) -> None:
    """Commits wait no longer than their limit. When the reader ends, the file of the log is cut to its usual size."""
    site.commit(5)
    with closing(site.connect()) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM message").fetchone() == (5,)
        site.commit_until_begun()
        for _ in range(COMMITS // 2):
            site.commit()
            site.wait_for_the_checkpoint()
        assert 2 <= len(site.background.found) <= 1 + 1 / LOG_REST_SHARE / 2
        site.commit(2 * COMMITS)
        assert len(site.background.found) < 4 / LOG_REST_SHARE
        assert site.log_bytes > SHORT_BYTES
        assert reader.execute("SELECT count(*) FROM message").fetchone() == (5,)
    site.commit(3 * COMMITS)
    assert site.log_bytes <= SHORT_BYTES


def test_commit_waits_for_readers_of_a_long_log_for_a_limited_time(site: Site) -> None:
    site.commit(5)
    with closing(site.connect()) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM message").fetchone() == (5,)
        slowest_s = 0.0
        for _ in range(2 * LOG_TIMES_MAX * COMMITS):
            began = time.monotonic()
            site.commit()
            slowest_s = max(slowest_s, time.monotonic() - began)
    assert slowest_s >= LIMITS.restart_wait_s
    (timeout_ms,) = site.own.execute("PRAGMA busy_timeout").fetchone()
    assert timeout_ms == LIMITS.busy_timeout_s * 1000, "other waits are as they were"


def test_log_stays_short_under_any_load(site: Site) -> None:
    site.commit(2_000)
    assert site.log_bytes < SHORT_BYTES
    assert len(site.background.found) > 2_000 * COMMIT_BYTES / LONGEST_BYTES / 2


def test_checkpoint_starts_with_something_to_move(site: Site) -> None:
    """The bug at https://sqlite.org/wal.html#walresetbug needs a checkpoint of a finished log during a commit."""
    site.commit(3_000)
    assert site.background.found
    assert all(moved < there for moved, there in site.background.found)


def test_no_checkpoint_starts_on_commits_that_the_last_one_moved(site: Site) -> None:
    """A thread that starts late moves commits that count as made during it."""
    site.background.gate.clear()
    site.commit_until_begun()
    site.commit(COMMITS // 4)
    site.own.execute("INSERT INTO message VALUES (?)", (BODY,))
    site.committed += 1
    site.background.gate.set()
    site.wait_for_the_checkpoint()
    moved_frames, frames = moved(site.path)
    assert moved_frames == frames
    site.checkpointer.committed(COMMIT_BYTES)
    site.commit(COMMITS)
    site.wait_for_the_checkpoint()
    assert len(site.background.found) > 1
    assert all(moved < there for moved, there in site.background.found)


def test_empty_commits_start_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such commits leave no frame to checkpoint."""
    told: list[int] = []
    monkeypatch.setattr(Checkpointer, "committed", lambda _, log_bytes: told.append(log_bytes))
    rig = sqlite_rig(tmp_path)
    rig.store.state.put("kind", "another", b"value")
    rig.commit()
    told.clear()
    rig.store.state.delete("kind", "a key that no row has")
    assert rig.commit().error is None
    assert not told
    rig.store.state.put("kind", "key", b"value")
    rig.commit()
    assert len(told) == 1
    rig.store.close()


def test_commits_wait_for_a_checkpoint_when_the_log_is_too_long(site: Site) -> None:
    site.background.gate.clear()
    site.commit_until_begun()
    writing = threading.Thread(target=site.commit, args=(1_000,))
    writing.start()
    try:
        wait_until(lambda: site.committed * COMMIT_BYTES >= LONGEST_BYTES, timeout_s=20, what="the log is long")
        writing.join(0.05)  # the wait shows only in time: too short a look would pass, never fail, by mistake
        assert site.committed * COMMIT_BYTES < LONGEST_BYTES + 2 * COMMIT_BYTES
    finally:
        site.background.gate.set()
        writing.join()
    assert site.log_bytes < SHORT_BYTES


def test_failed_checkpoint_is_logged_and_retried_after_more_writes(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.background.set_progress_handler(lambda: 1, 1)  # SQLite raises SQLITE_INTERRUPT
    with caplog.at_level(logging.WARNING):
        site.commit_until_begun()
        site.wait_for_the_checkpoint()
        site.commit()
        assert len(caplog.records) == 1
        assert "checkpoint" in caplog.text
        site.commit(COMMITS - 2)
        assert len(site.background.found) == 1
    site.background.set_progress_handler(None, 0)
    site.commit(3 * COMMITS)
    assert site.log_bytes < (LOG_TIMES_MAX + 1) * LIMITS.checkpoint_bytes
    assert moved(site.path)[1] * FRAME_BYTES < SHORT_BYTES, "the log is reset"


class FailingSyncs:
    """Replacement of `os.fdatasync`: the next call fails after `fail` is set."""

    def __init__(self) -> None:
        self.fail = False
        self._sync = os.fdatasync

    def __call__(self, descriptor: int) -> None:
        if self.fail:
            self.fail = False
            raise OSError(errno.EIO, "the medium failed")
        self._sync(descriptor)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> FailingSyncs:
    made = FailingSyncs()
    monkeypatch.setattr(os, "fdatasync", made)
    return made


def test_log_is_kept_when_the_file_could_not_be_synced(site: Site, syncs: FailingSyncs) -> None:
    """SQLite counts the frames as checkpointed, but the kernel may have lost them."""
    syncs.fail = True
    site.commit_until_begun()
    site.wait_for_the_checkpoint()
    site.commit()
    assert not syncs.fail
    assert site.checkpointer.keeps_log
    assert "restarted" in site.problems.texts()[0]
    before, frames = len(site.background.found), moved(site.path)[1]
    site.commit(3 * COMMITS)
    site.checkpointer.no_room(10.0)
    assert len(site.background.found) == before
    assert moved(site.path)[1] > frames + 3 * COMMITS, "nothing is moved, and the log is not reset"


def test_kept_log_accepts_commits_up_to_a_limit(site: Site, syncs: FailingSyncs) -> None:
    syncs.fail = True
    site.commit_until_begun()
    site.wait_for_the_checkpoint()
    most = LOG_KEPT_TIMES_MAX * LIMITS.checkpoint_bytes
    while site.checkpointer.refusal is None:
        site.commit()
        assert site.log_bytes < most
    assert site.committed * COMMIT_BYTES > most - 3 * COMMIT_BYTES
    assert "restart the gateway" in str(site.checkpointer.refusal)


def medium_of(rig: Rig) -> SqliteMedium:
    assert isinstance(rig.store.medium, SqliteMedium)
    return rig.store.medium


def test_kept_log_is_moved_completely_when_the_store_is_opened_again(tmp_path: Path, syncs: FailingSyncs) -> None:
    rig = sqlite_rig(tmp_path, StoreLimits(checkpoint_bytes=100_000))
    log = rig.store.logs.open("a")
    rig.store.cursors.open("c", log, 0)
    syncs.fail = True
    sent = 0
    while not medium_of(rig).problems:
        rig.store.logs.append(log, run_of(b"%d" % sent * 5_000))
        rig.commit()
        sent += 1
        assert sent < 1_000
    assert medium_of(rig).threads_live
    rig.store.close()
    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size > 100_000
    rig = sqlite_rig(tmp_path, StoreLimits(checkpoint_bytes=100_000))
    assert not medium_of(rig).problems
    assert len(rig.read_all(log)) == sent
    rig.store.close()
    assert not (tmp_path / f"{FILE_NAME}-wal").exists()


def test_writer_checkpoints_without_another_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    site.commit(2_000)
    assert not site.background.found
    assert site.log_bytes < (1 + LOG_REST_SHARE) * LIMITS.checkpoint_bytes


def test_full_medium_resets_the_log_early(site: Site) -> None:
    site.commit(5)
    site.checkpointer.no_room(10.0)
    assert moved(site.path)[0] == moved(site.path)[1] > 0
    site.commit(2)
    assert moved(site.path)[1] < 10, "it is reset"
    site.checkpointer.no_room(10.0 + NO_ROOM_PAUSE_S / 2)
    assert moved(site.path)[0] == 0, "not for each message that is refused"
    site.checkpointer.no_room(10.0 + NO_ROOM_PAUSE_S)
    assert moved(site.path)[0] == moved(site.path)[1]


def test_log_of_an_earlier_process_counts(site: Site) -> None:
    background = site.connect()
    later = Checkpointer(
        site.path, site.own, background, LIMITS, site.problems, logged_bytes=LIMITS.checkpoint_bytes - 1
    )
    site.commit()
    assert moved(site.path)[0] == 0
    later.committed(1)
    later.stop()
    assert moved(site.path)[0] == moved(site.path)[1] > 0
    later.close()
