"""A place in the write-ahead log that no checkpoint goes beyond, set by ourselves: so it can be moved in parts.

A checkpoint stops at what the slowest reader has seen, and of each page it moves the newest version in the whole log,
or none when that is beyond. So parts that end at one place after another write every page once, as one checkpoint of
all of it does. Smaller checkpoints, each of a log begun anew, would write pages that change often every time.
"""

from __future__ import annotations

import contextlib
import sqlite3

from edge.broker.store.wal_index import LogIndex


class LogPlace:
    """The mark of a reader that reads nothing, set to less than it has seen.

    Whoever else holds that mark began at `end` or later, and does not mind: a mark says how far the file may go, not
    what its reader sees. Every method but `set` is called on the writer's thread, between two commits.
    """

    def __init__(self, reader: sqlite3.Connection, index: LogIndex) -> None:
        """`reader` is a connection nobody else uses."""
        self._reader = reader
        self._index = index
        self._mark: int | None = None
        self.end = 0
        """How many frames there were when it was taken."""

    def take(self) -> None:
        """At the end of the log. Where no mark is to be had, as many read the log, it holds nobody."""
        with contextlib.suppress(sqlite3.Error):
            self._reader.execute("BEGIN")
            self._reader.execute("SELECT 1 FROM sqlite_schema").fetchall()
        self.end = self._index.frames
        self._mark = self._index.mark_of(self.end) if self._reader.in_transaction else None

    def set(self, frames: int) -> None:
        """The next checkpoint goes to so many frames, `end` at the most. Called while none runs, by whoever runs it."""
        if self._mark is not None:
            self._index.set_mark(self._mark, min(frames, self.end))

    def leave(self) -> None:
        """Checkpoints go to the end of the log, and a commit may begin it anew."""
        self._mark = None
        with contextlib.suppress(sqlite3.Error):
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    def close(self) -> None:
        """No method is called any more."""
        self._reader.close()
