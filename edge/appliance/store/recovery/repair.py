"""Repair of a damaged store, in a new file next to it: intact parts are kept, missing messages are accounted for.

Each segment that can be reached and has a valid CRC is kept unchanged. Messages missing between segments are entered
into the loss ledger. If the last sequences are no longer known the store continues in a new epoch, so that no name is
used twice. The damaged file is never written to, and is kept under another name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from bridge.durable_file import sync_path
from edge.appliance.store.recovery import snapshot
from edge.appliance.store.recovery.rebuilding import Rebuilding
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.salvage import Salvage
from edge.broker.store.faults import store_error_of
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.sqlite import FILE_NAME, REPAIRED_NAME, REPAIRING_NAME, SALVAGE_NAME, remove_unfinished


def repair(
    data: Path, *, write: bool, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> RepairReport:
    """Repair the store in a data directory; without `write` only report the changes.

    Raises StoreBusy, StoreInaccessible, StoreFull. `on_progress` is called with (bytes processed, bytes of the file).

    It needs free space for two copies of the store, or for three when all pages have to be searched. An interruption at
    any time leaves the damaged store, the new one, or a state that only another repair opens and completes.
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
            taken = snapshot.copy_readable(data / FILE_NAME, copy, lambda done: on_progress(done, size))
            with contextlib.closing(Salvage(copy)) as salvage:
                report = Rebuilding(salvage, copy, fresh, lambda done: on_progress(done, size)).run(taken)
            if write:
                sync_path(fresh)
                fresh.replace(data / REPAIRED_NAME)
                report.damaged_copy = _put_in_place(data)
        except sqlite3.Error as error:
            raise store_error_of(error, "repairing") from error
        else:
            return report
        finally:
            for path in (copy, fresh):
                for suffix in ("", "-wal", "-shm", "-journal", *(f"-{name}" for name in snapshot.SCRATCH)):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
    finally:
        lock.release()


def _put_in_place(data: Path) -> str:
    """Swap the repaired file in. Each step can be repeated: a store is not opened while `REPAIRED_NAME` exists."""
    path, fresh = data / FILE_NAME, data / REPAIRED_NAME
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(fresh.stat().st_mtime))
    damaged = data / f"{FILE_NAME}.damaged-{stamp}"
    if path.exists() and not damaged.exists():
        os.link(path, damaged)
    log = data / f"{FILE_NAME}-wal"
    if log.exists():
        log.replace(damaged.with_name(damaged.name + "-wal"))  # the new file must not get the old log
    (data / f"{FILE_NAME}-shm").unlink(missing_ok=True)
    sync_path(data)
    fresh.replace(path)
    sync_path(data)
    return str(damaged)
