"""A damaged store becomes a sound one, in a new file beside it: what passes its checks is kept, the rest accounted for.

Segments stand for themselves: each row that can be reached and whose CRC fits is kept as it is. What stood between them
is entered into the loss ledger. Where the sequences given last are not known any more the store goes on under a new
epoch, rather than name two messages alike. The damaged file is never written to, and stays under another name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from edge.appliance.store.recovery import snapshot
from edge.appliance.store.recovery.rebuilding import Rebuilding
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.salvage import Salvage
from edge.broker.store.faults import meaning
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.sqlite import FILE_NAME, REPAIRED_NAME, REPAIRING_NAME, SALVAGE_NAME, remove_unfinished


def repair(
    data: Path, *, write: bool, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> RepairReport:
    """Make the store in a data directory sound; without `write` only say how.

    Raises StoreBusy, StoreInaccessible, StoreFull.

    `on_progress` is called with (bytes gone through, bytes of the file).

    Needs room for two copies of the store, for three where the messages have to be looked for in every page.
    Interrupted at any time, it leaves the damaged store in place, or the new one, or a state that only a repair opens,
    and finishes.
    """
    lock = DirectoryLock(data)
    try:
        remove_unfinished(data)
        if (data / REPAIRED_NAME).exists():
            kept = _put_in_place(data)
            return RepairReport(notes=["an earlier repair was interrupted and is complete now"], damaged_copy=kept)
        copy, fresh = data / SALVAGE_NAME, data / REPAIRING_NAME
        try:
            size = (data / FILE_NAME).stat().st_size
            taken = snapshot.take(data / FILE_NAME, copy, lambda done: on_progress(done, size))
            with contextlib.closing(Salvage(copy)) as salvage:
                report = Rebuilding(salvage, copy, fresh, lambda done: on_progress(done, size)).run(taken)
            if write:
                _sync(fresh)
                fresh.replace(data / REPAIRED_NAME)
                report.damaged_copy = _put_in_place(data)
        except sqlite3.Error as error:
            raise meaning(error, "repairing") from error
        else:
            return report
        finally:
            for path in (copy, fresh):
                for suffix in ("", "-wal", "-shm", "-journal", *(f"-{name}" for name in snapshot.SCRATCH)):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
    finally:
        lock.release()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(data: Path) -> str:
    """Swap the repaired file in. Every step may be done again: a store is not opened while `REPAIRED_NAME` is there."""
    path, fresh = data / FILE_NAME, data / REPAIRED_NAME
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(fresh.stat().st_mtime))
    damaged = data / f"{FILE_NAME}.damaged-{stamp}"
    if path.exists() and not damaged.exists():
        os.link(path, damaged)
    log = data / f"{FILE_NAME}-wal"
    if log.exists():
        log.replace(damaged.with_name(damaged.name + "-wal"))  # the new file must not be given the old one's log
    (data / f"{FILE_NAME}-shm").unlink(missing_ok=True)
    _sync(data)
    fresh.replace(path)
    _sync(data)
    return str(damaged)
