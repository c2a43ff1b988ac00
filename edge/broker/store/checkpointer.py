"""Moves the write-ahead log into the file, beside the commits: most of it while they go on, the rest between two.

A checkpoint of the whole log takes 5 ms on a PC's disk and up to seconds on a card, and whoever waits for the next
commit waits for it too. So a pass over all there is runs on a thread and a connection of its own; SQLite lets commits
go on meanwhile. What they append during the pass is moved on the writer's thread, between two commits: only a log that
is moved to its end is begun anew.

SQLite before 3.51.3 can damage a file when a checkpoint *begins* on a log that is moved to its end while somebody
commits (https://sqlite.org/wal.html#walresetbug). It does not come to that here: there is one pass at a time, the
writer begins it right after a commit, so with something left to move, and the last one is its own.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from typing import Final

from edge.broker.store.faults import meaning
from edge.broker.store.limits import Limits

logger = logging.getLogger(__name__)

REST: Final = 1 / 8
"""Of `checkpoint_bytes`: what may be left for the writer's thread, 2 MiB or about 1 ms of a PC's disk."""
LONGEST: Final = 2
"""Times `checkpoint_bytes`: a log as long as that waits for no pass, commits wait for it. On a medium that is slower at
random than in sequence the log would grow without end."""


class Checkpointer:
    """Every method is called on the writer's thread."""

    def __init__(
        self, own: sqlite3.Connection, beside: sqlite3.Connection, limits: Limits, *, logged_bytes: int = 0
    ) -> None:
        """`own` is the writer's connection, `beside` one that nobody else uses.

        `logged_bytes`: what a former process left in the log. It counts, or one that is killed again and again before
        it has written enough for a checkpoint would let the log grow without end.
        """
        self._own = own
        self._beside = beside
        self._limits = limits
        self._logged_bytes = logged_bytes
        """About how long the log is."""
        self._moved_bytes = 0
        """How much of it is in the file."""
        self._pass: threading.Thread | None = None
        self._failed = False

    def committed(self, log_bytes: int) -> None:
        """A commit made the log longer by this, and has been answered."""
        self._logged_bytes += log_bytes
        if self._logged_bytes < self._limits.checkpoint_bytes:
            return
        long = self._logged_bytes >= LONGEST * self._limits.checkpoint_bytes
        if self._pass is not None:
            if self._pass.is_alive() and not long:
                return
            self._wait()
        if not self._failed:
            left = self._logged_bytes - self._moved_bytes
            if left > REST * self._limits.checkpoint_bytes and not long:
                self._begin()
                return
            self._move(self._own)
        # after a failure, too: commits need the log alone, and it is tried again when as much has been written again
        self._logged_bytes = self._moved_bytes = 0
        self._failed = False

    def stop(self) -> None:
        """Wait for the pass under way and close its connection."""
        self._wait()
        self._beside.close()

    def _begin(self) -> None:
        self._moved_bytes = self._logged_bytes  # counts when the pass has ended, and not if it failed
        self._pass = threading.Thread(target=self._move, args=(self._beside,), name="store-checkpoint", daemon=True)
        self._pass.start()

    def _wait(self) -> None:
        if self._pass is not None:
            self._pass.join()
            self._pass = None

    def _move(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            self._failed = True
            logger.warning("%s", meaning(error, "checkpoint"))
