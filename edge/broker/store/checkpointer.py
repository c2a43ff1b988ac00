"""Moves the write-ahead log into the file, beside the commits: most of it while they go on, the rest between two.

A checkpoint of the whole log takes 6-9 ms of the processor on a PC and seconds of a card, and the sync of a commit may
have to wait behind that of 16 MiB. So a pass over all there is runs on a thread and a connection of its own, in parts
with pauses between them; SQLite lets commits go on meanwhile. What they append during the last of it is moved on the
writer's thread, between two commits: only a log that is moved to its end is begun anew. Two things SQLite leaves open
are seen to here (``decisions/0002``): when a pass may begin, and that what it moved is durable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreError
from edge.broker.store.faults import meaning, meaning_of_system
from edge.broker.store.limits import Limits
from edge.broker.store.log_place import LogPlace
from edge.broker.store.log_room import LogRoom
from edge.broker.store.wal_frames import FRAME
from edge.broker.store.wal_index import LogIndex

logger = logging.getLogger(__name__)

PART: Final = 1 / 8
"""Of `checkpoint_bytes`: what a part moves, 2 MiB: about 1 ms of a PC's processor and 2 ms of its disk."""
PAUSE: Final = 4
"""Times as long as a part took: commits meet one in a fifth of the time at most."""
PAUSE_S_MAX: Final = 0.01
"""Until the pass is over the file alone, without its log, is no sound store: a PC has passes of 0.1 s. On a card a part
takes longer than that, and a pass no longer than without pauses."""
REST: Final = 1 / 8
"""Of `checkpoint_bytes`: what may be left for the writer's thread, 2 MiB or about 1 ms of a PC's disk."""
HURRY: Final = 5 / 4
"""Times `checkpoint_bytes`: where the log is as long as that while a pass is under way, commits write so much that the
pass has no more pauses, and what is left of it is one part. 40 MiB/s on a PC."""
LONGEST: Final = 2
"""Times `checkpoint_bytes`: a log as long as that waits for no pass, commits wait for it. On a medium that cannot keep
up the log would grow without end."""

AGAIN_S: Final = 1.0
"""Between two attempts to begin the log anew while the medium is full: each may write a good part of the log."""


class Checkpointer:
    """Every method is called on the writer's thread."""

    def __init__(
        self,
        path: Path,
        own: sqlite3.Connection,
        beside: sqlite3.Connection,
        reader: sqlite3.Connection,
        limits: Limits,
        *,
        logged_bytes: int = 0,
    ) -> None:
        """`own` is the writer's connection to the database at `path`; `beside` and `reader` nobody else uses.

        `logged_bytes`: what a former process left in the log. It counts, or one that is killed again and again before
        it has written enough for a checkpoint would let the log grow without end. Raises OSError.
        """
        self._own = own
        self._beside = beside
        self._limits = limits
        self._frame_bytes = FRAME.size + limits.page_bytes
        self._logged_bytes = logged_bytes
        """About how long the log is."""
        self._pass: threading.Thread | None = None
        self._hurry = threading.Event()
        """There is no time for pauses."""
        self._parts = 0
        """Of the last pass."""
        self._found: int | None = None
        """Frames that were moved when it began; None: there was none since the log was moved to its end."""
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
        self._place = LogPlace(reader, self._index)

    def committed(self, log_bytes: int) -> None:
        """A commit made the log longer by this, and has been answered; or it failed, and added nothing."""
        self._room.committed(log_bytes)
        self._logged_bytes += log_bytes
        if self._logged_bytes < self._limits.checkpoint_bytes:
            return
        long = self._logged_bytes >= LONGEST * self._limits.checkpoint_bytes
        if self._pass is not None:
            if self._pass.is_alive() and not long:
                if self._logged_bytes >= HURRY * self._limits.checkpoint_bytes:
                    self._hurry.set()
                return
            self._wait()
        if not (self._failed or long) and self._worth_a_pass() and self._begin():
            return
        if not self._failed:
            self._move(self._own)
        # after a failure, too: commits need the log alone, and it is tried again when as much has been written again
        self._count_anew()

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
            self._count_anew()

    def stop(self) -> None:
        """Wait for the pass under way and close its connections."""
        self._wait()
        self._place.close()
        self._beside.close()

    def close(self) -> None:
        """After every connection of this process: the first descriptor of a file that is closed takes all of the
        process's locks on it along (fcntl(2)), and SQLite's are such."""
        self._files.close()

    def _count_anew(self) -> None:
        self._logged_bytes = 0
        self._found = None
        self._failed = False

    def _worth_a_pass(self) -> bool:
        """What is left is too much for the writer's thread, or one part makes it less.

        A pass never begins on a log that is moved to its end (``decisions/0002``), and not once more where somebody
        reads an older place of it, beyond which none gets.
        """
        moved, frames = self._index.moved, self._index.frames
        if moved >= frames or moved == self._found:
            return False
        return self._found is None or self._parts > 1 or frames - moved > self._frames(REST)

    def _begin(self) -> bool:
        """Start a pass; False where the system gives no thread."""
        self._place.take()
        self._found = self._index.moved
        thread = threading.Thread(target=self._run, name="store-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._place.leave()
            return False
        self._pass = thread
        return True

    def _wait(self) -> None:
        if self._pass is not None:
            self._hurry.set()
            self._pass.join()
            self._hurry.clear()
            self._pass = None
            self._place.leave()

    def _run(self) -> None:
        """Part by part to where the log ended when the pass began; no further than somebody else lets it go."""
        self._parts, upto, end = 0, 0, self._place.end
        while upto < end:
            began = time.perf_counter()
            upto = end if self._hurry.is_set() else min(self._index.moved + self._frames(PART), end)
            self._place.set(upto)
            if not (self._move(self._beside) and self._sync()):
                return
            self._parts += 1
            if self._index.moved != upto:
                return  # and what is moved beyond it may be the end of the log: no part begins there
            if upto < end:
                self._hurry.wait(min(PAUSE * (time.perf_counter() - began), PAUSE_S_MAX))

    def _sync(self) -> bool:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._index.none_is_moved()
            self._fail(meaning_of_system(error, "checkpoint"))
            return False
        return True

    def _frames(self, share: float) -> int:
        """Of a log of `checkpoint_bytes`; one at least."""
        return max(1, int(share * self._limits.checkpoint_bytes) // self._frame_bytes)

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
