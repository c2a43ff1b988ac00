"""Room in the write-ahead log's file for the commits to come, so that their sync writes what they wrote and no more.

A file that grows has a new size and new blocks, and a sync makes the file system's journal write these as well: half as
long again on a PC's disk, two writes instead of one on a card. SQLite lets the log grow by every commit until the first
checkpoint begins it anew; from then on it has its room. So small commits, of which each is waited for, find room that
was written as zeros before: SQLite reads its log up to the first frame that is none, and zeros are none.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from edge.broker.store.limits import KIB, Limits
from edge.broker.store.wal_frames import FRAME, HEADER
from edge.broker.store.wal_index import LogIndex

STEP_BYTES: Final = 256 * KIB
"""Written at once, with the next commit's sync: 17 ms of a card that writes 15 MB/s, for some 30 commits."""
SMALL_BYTES: Final = 32 * KIB
"""Of a commit, as it is estimated: a few pages, no more than the journal would take of a file that grows. Larger ones
would write everything twice to save that."""


class LogRoom:
    """Every method is called on the writer's thread."""

    def __init__(self, path: Path, own: sqlite3.Connection, index: LogIndex, limits: Limits) -> None:
        """`own` is the writer's connection to the database at `path`, `index` that of its log."""
        self._path = f"{path}-wal"
        self._own = own
        self._index = index
        self._frame_bytes = FRAME.size + limits.page_bytes
        self._bytes_max = limits.checkpoint_bytes
        self._log: int | None = None
        """Its file, from the first commit on."""
        self._size = 0
        self._refused = False
        """The medium had no room for it: commits may need what there is."""

    def committed(self, log_bytes: int) -> None:
        """A commit wrote so much to the log, and has been answered."""
        if log_bytes > SMALL_BYTES or self._refused:
            return
        end = self._end
        if end + 2 * log_bytes <= self._size or end >= self._bytes_max:
            return
        try:
            if self._log is None:
                self._log = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            self._size = os.fstat(self._log).st_size
            if end + 2 * log_bytes > self._size:
                self._extend(self._log)
        except OSError:
            self._refused = True

    def close(self) -> None:
        """No method is called any more."""
        if self._log is not None:
            os.close(self._log)

    @property
    def _end(self) -> int:
        """Where the next commit begins."""
        return HEADER.size + self._index.frames * self._frame_bytes

    def _extend(self, log: int) -> None:
        """In a transaction: another program's commit might be on its way to the same place. Raises OSError."""
        try:
            self._own.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return  # somebody else writes: next time
        try:
            self._size = os.fstat(log).st_size
            step_bytes = min(STEP_BYTES, self._bytes_max - self._size)
            if step_bytes > 0:
                self._size += os.pwrite(log, bytes(step_bytes), self._size)
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._own.execute("ROLLBACK")
