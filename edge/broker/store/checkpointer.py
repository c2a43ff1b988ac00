"""Moves the write-ahead log into the database file, on its own thread and connection, while commits continue.

A checkpoint of the whole log takes 6-9 ms on a PC and seconds on a card. No acknowledgement may wait for it, so a
PASSIVE checkpoint runs in the background. The writer's thread moves the few frames that commits append during it, and
the next commit resets the log. ``decisions/0002`` says when a checkpoint starts, and why the file is synced after it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Final, Literal, NamedTuple

from edge.broker.store.errors import StoreError
from edge.broker.store.faults import store_error_of, store_error_of_system
from edge.broker.store.limits import (
    LOG_KEPT_TIMES_MAX,
    LOG_REST_SHARE,
    LOG_TIMES_MAX,
    NO_ROOM_PAUSE_S,
    StoreLimits,
)
from edge.broker.store.problems import CHECKPOINTS, Problems

logger = logging.getLogger(__name__)

Mode = Literal["PASSIVE", "RESTART"]


class Moved(NamedTuple):
    """Result of one checkpoint, as reported by SQLite."""

    blocked: bool
    """A RESTART failed because a reader still uses the log."""
    frames: int
    """Frames of the log when the checkpoint started."""
    moved: int
    """Number of these frames that are in the file now."""

    @property
    def complete(self) -> bool:
        """True when all frames were moved, so that the next commit resets the log."""
        return self.moved == self.frames and not self.blocked


class Checkpointer:
    """Runs checkpoints. All methods are called on the writer's thread, between two commits."""

    def __init__(
        self,
        path: Path,
        own: sqlite3.Connection,
        background: sqlite3.Connection,
        limits: StoreLimits,
        problems: Problems,
        *,
        logged_bytes: int = 0,
    ) -> None:
        """`own` is the writer's connection to the database at `path`, `background` one for background checkpoints.

        `logged_bytes` is the size of the log that a former process left. It counts, so that the log stays bounded when
        a gateway is repeatedly killed before its first checkpoint. Raises OSError.
        """
        self._own = own
        self._background = background
        self._limits = limits
        self._problems = problems
        self._frame_bytes = _FRAME_HEAD_BYTES + limits.page_bytes
        self._log_bytes = self._left_bytes = logged_bytes
        """Estimated size of the log, and of its part that is not in the file."""
        self._try_at_bytes = limits.checkpoint_bytes
        """Size of the log at which the next checkpoint is due."""
        self._thread: threading.Thread | None = None
        """Runs the background checkpoint."""
        self._started_at_bytes = 0
        """Size of the log when the background checkpoint started."""
        self._result: Moved | None = None
        """Its result; None: it failed."""
        self._keeps_log = False
        self._room_asked_at = float("-inf")
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        """Descriptor for syncs of the database file."""

    @property
    def keeps_log(self) -> bool:
        """True when the log must stay as it is until the store is opened again: the file lacks some of its pages."""
        return self._keeps_log

    @property
    def refusal(self) -> StoreError | None:
        """Error to return for every commit because the log is too long, or None."""
        most = LOG_KEPT_TIMES_MAX * self._limits.checkpoint_bytes
        if not self._keeps_log or self._log_bytes < most:
            return None
        return StoreError(f"the log has reached {most} bytes and cannot be moved into the file: restart the gateway")

    def committed(self, log_bytes: int) -> None:
        """Record that a commit made the log longer by about this much. Start a checkpoint when one is due.

        Do not call it for a commit that wrote nothing.
        """
        self._log_bytes += log_bytes
        self._left_bytes += log_bytes
        long = self._log_bytes >= LOG_TIMES_MAX * self._limits.checkpoint_bytes
        ended = self._thread is not None
        if self._thread is not None:
            if self._thread.is_alive() and not long:
                return
            self._join()
        if self._keeps_log or self._log_bytes < self._try_at_bytes:
            return
        if long:
            self._move("RESTART")
        elif self._left_bytes <= LOG_REST_SHARE * self._limits.checkpoint_bytes:
            self._move("PASSIVE")
        elif ended:
            # The checkpoint that just ended may have moved this commit too, and all before it. Wait for the next one.
            return
        elif not self._start():
            self._move("PASSIVE")

    def no_room(self, now: float) -> None:
        """Move the log into the file because a commit found the medium full; the next commit resets the log.

        It tries once in `NO_ROOM_PAUSE_S`. `now`: seconds of any clock.
        """
        if now < self._room_asked_at + NO_ROOM_PAUSE_S:
            return
        self._room_asked_at = now
        self._join()
        if not self._keeps_log:
            self._move("PASSIVE")

    def stop(self) -> None:
        """Wait for the background checkpoint and close its connection."""
        self._join()
        self._background.close()

    def close(self) -> None:
        """Close the file, after every connection of this process: closing any descriptor of a file drops all locks that
        the process has on it (fcntl(2)), SQLite's among them."""
        os.close(self._file)

    def _start(self) -> bool:
        """Start a background checkpoint. Return False when no thread can be started."""
        thread = threading.Thread(target=self._run, name="store-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        self._started_at_bytes = self._log_bytes
        self._result = self._checkpoint(self._background, "PASSIVE")
        if self._result is not None:
            self._sync()

    def _join(self) -> None:
        """Wait for the background checkpoint, if there is one, and account for it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._account(self._result, self._log_bytes - self._started_at_bytes)

    def _move(self, mode: Mode) -> None:
        """Run a checkpoint between two commits."""
        result = self._checkpoint(self._own, mode)
        if result is not None and not result.complete:
            self._sync()
        self._account(result, 0)
        if result is not None and result.complete:
            self._log_bytes = self._left_bytes = 0
            self._try_at_bytes = self._limits.checkpoint_bytes

    def _account(self, result: Moved | None, appended_bytes: int) -> None:
        """Update the sizes after a checkpoint. `appended_bytes`: bytes that commits appended since it started."""
        if result is None:
            self._try_at_bytes = self._log_bytes + self._limits.checkpoint_bytes
            return
        self._log_bytes = result.frames * self._frame_bytes + appended_bytes
        self._left_bytes = (result.frames - result.moved) * self._frame_bytes + appended_bytes
        if not result.complete:  # a reader holds the rest back
            share = 1 if result.blocked else LOG_REST_SHARE
            self._try_at_bytes = self._log_bytes + int(share * self._limits.checkpoint_bytes)

    def _checkpoint(self, connection: sqlite3.Connection, mode: Mode) -> Moved | None:
        """Run a checkpoint and return its result; None when it failed, which is logged."""
        try:
            if mode == "RESTART":
                connection.execute(f"PRAGMA busy_timeout = {int(self._limits.restart_wait_s * 1000)}").fetchall()
            blocked, frames, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            if mode == "RESTART":
                connection.execute(f"PRAGMA busy_timeout = {int(self._limits.busy_timeout_s * 1000)}").fetchall()
        except sqlite3.Error as error:
            logger.warning("%s", store_error_of(error, "checkpoint"))
            return None
        return Moved(bool(blocked), frames, moved)

    def _sync(self) -> None:
        """Sync the pages of a checkpoint that did not reach the end of the log, because SQLite does not.

        SQLite counts those pages as moved. If the sync fails, the kernel may drop them, and no later checkpoint writes
        them. So the log is kept until the store is opened again, which moves all of it.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._keeps_log = True
            failed = store_error_of_system(error, "checkpoint")
            why = f"{failed}; the log is kept and grows until the gateway is restarted"
            self._problems.report(CHECKPOINTS, why)
            logger.warning("%s", why)


_FRAME_HEAD_BYTES: Final = 24
"""Size of the header of each frame (https://sqlite.org/fileformat2.html section 4.1)."""
