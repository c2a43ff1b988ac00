"""Moves the write-ahead log into the file, beside the commits: most of it while they go on, the rest between two.

A checkpoint of the whole log takes 5 ms on a PC's disk and seconds on a card, and whoever waits for the next commit
waits for it too. So a pass over all there is runs on a thread and a connection of its own; SQLite lets commits go on
meanwhile. What they append during the pass is moved on the writer's thread, between two commits: only a log that is
moved to its end is begun anew. Two things SQLite leaves open are seen to here (``decisions/0002``): when a pass may
begin, and that what it moved is durable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreError
from edge.broker.store.faults import meaning, meaning_of_system
from edge.broker.store.limits import Limits
from edge.broker.store.log_room import LogRoom
from edge.broker.store.wal_index import LogIndex

logger = logging.getLogger(__name__)

REST: Final = 1 / 8
"""Of `checkpoint_bytes`: what may be left for the writer's thread, 2 MiB or about 1 ms of a PC's disk."""
LONGEST: Final = 2
"""Times `checkpoint_bytes`: a log as long as that waits for no pass, commits wait for it. On a medium that cannot keep
up the log would grow without end."""

AGAIN_S: Final = 1.0
"""Between two attempts to begin the log anew while the medium is full: each may write a good part of the log."""


class Checkpointer:
    """Every method is called on the writer's thread."""

    def __init__(
        self, path: Path, own: sqlite3.Connection, beside: sqlite3.Connection, limits: Limits, *, logged_bytes: int = 0
    ) -> None:
        """`own` is the writer's connection to the database at `path`, `beside` one that nobody else uses.

        `logged_bytes`: what a former process left in the log. It counts, or one that is killed again and again before
        it has written enough for a checkpoint would let the log grow without end. Raises OSError.
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
        self._again_at = 0.0
        with contextlib.ExitStack() as undo:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, self._file)
            self._index = LogIndex(path)
            undo.callback(self._index.close)
            self._room = LogRoom(path, own, self._index, limits)
            undo.callback(self._room.close)
            self._files = undo.pop_all()

    def committed(self, log_bytes: int) -> None:
        """A commit made the log longer by this, and has been answered; or it failed, and added nothing."""
        self._room.committed(log_bytes)
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
            if left > REST * self._limits.checkpoint_bytes and not long and self._index.left and self._begin():
                return
            self._move(self._own)
        # after a failure, too: commits need the log alone, and it is tried again when as much has been written again
        self._logged_bytes = self._moved_bytes = 0
        self._failed = False

    def no_room(self, now: float) -> None:
        """A commit found the medium full. A log that is moved into the file is begun anew, in the room that it has.

        Where the file has no room either nothing is said: the commit said it. `now`: seconds of any clock.
        """
        if now < self._again_at:
            return
        self._again_at = now + AGAIN_S
        self._wait()
        try:
            _, there, moved = self._own.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return
        if there == moved:
            self._logged_bytes = self._moved_bytes = 0

    def stop(self) -> None:
        """Wait for the pass under way and close its connection."""
        self._wait()
        self._beside.close()

    def close(self) -> None:
        """After every connection of this process: the first descriptor of a file that is closed takes all of the
        process's locks on it along (fcntl(2)), and SQLite's are such."""
        self._files.close()

    def _begin(self) -> bool:
        """Start a pass; False where the system gives no thread."""
        thread = threading.Thread(target=self._run, name="store-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._pass = thread
        self._moved_bytes = self._logged_bytes  # counts when the pass has ended, and not if it failed
        return True

    def _wait(self) -> None:
        if self._pass is not None:
            self._pass.join()
            self._pass = None

    def _run(self) -> None:
        if self._move(self._beside):
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._index.none_is_moved()
                self._fail(meaning_of_system(error, "checkpoint"))

    def _move(self, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            self._fail(meaning(error, "checkpoint"))
            return False
        return True

    def _fail(self, why: StoreError) -> None:
        self._failed = True
        logger.warning("%s", why)
