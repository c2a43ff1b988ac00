"""Checkpoints of a table, so that readers need few entries of its log; and the deletion of old entries.

A checkpoint names every file of the table, and a deletion lists the whole log: in a bucket either may take many
seconds. No acknowledgement waits for them, so the hub runs them on a thread of their own. To a landing they are what
another hub does: each opens the table for itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from deltalake.exceptions import DeltaError

from cloud.lake.limits import CHECKPOINT_EVERY, CHECKPOINT_SHARE, CHECKPOINTS_A_CLEANUP
from cloud.place.faults import explain_error
from cloud.place.place import LOG, LakePlace

log = logging.getLogger(__name__)

StartWork: TypeAlias = Callable[[Callable[[], float]], "Future[float]"]
"""Starts work on another thread (`Executor.submit`). The work returns the seconds that it took."""


def run_at_once(work: Callable[[], float]) -> Future[float]:
    """Run work on the calling thread: for programs in which nothing waits for it."""
    done: Future[float] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done


class TableCheckpoints:
    """Checkpoints of one table. Methods are for the thread that appends to it."""

    def __init__(self, place: LakePlace, start: StartWork) -> None:
        self._place = place
        self._start = start
        self._due = False
        self._every = CHECKPOINT_EVERY
        self._made = 0
        self._under_way: Future[float] | None = None

    def count_version(self, version: int) -> None:
        """Note that this hub has taken a version. At every multiple of an interval, a checkpoint is due."""
        self._due = self._due or version % self._every == 0

    def keep(self) -> None:
        """Start a checkpoint if one is due and none is under way. After a failure, a later one takes its place."""
        if self._under_way is not None and not self._take_result(self._under_way):
            return
        if self._due:
            self._due = False
            self._made += 1
            self._under_way = self._start(self._write_clean if self._made % CHECKPOINTS_A_CLEANUP == 0 else self._write)
            self._take_result(self._under_way)

    def _take_result(self, work: Future[float]) -> bool:
        """Take over the result of a checkpoint; return False while it is under way."""
        if not work.done():
            return False
        self._under_way = None
        error = work.exception()
        if error is None:  # the larger the table, the rarer they are
            self._every = max(CHECKPOINT_EVERY, int(work.result() / CHECKPOINT_SHARE))
        elif isinstance(error, OSError | DeltaError):
            log.warning("table %s gets no checkpoint now: %s", self._place.name, explain_error(str(error)))
        else:
            log.error("table %s gets no checkpoint: internal error", self._place.name, exc_info=error)
        return True

    def _write(self) -> float:
        """Write a checkpoint, durable on return."""
        began_s = time.monotonic()
        delta = self._place.delta()
        version = int(delta.version())
        sync_log(self._place, version)  # the entry first: a power cut must not leave the checkpoint alone
        delta.create_checkpoint()
        sync_log(self._place, version)
        return time.monotonic() - began_s

    def _write_clean(self) -> float:
        """Write a checkpoint, and delete log entries that were kept long enough."""
        took_s = self._write()
        self._place.delta().cleanup_metadata()
        return took_s


def sync_log(place: LakePlace, version: int) -> None:
    """Sync the log after a commit: its entry, a checkpoint if it made one, and their names."""
    place.sync(LOG, (f"{version:020}.json", f"{version:020}.checkpoint.parquet", "_last_checkpoint"))
