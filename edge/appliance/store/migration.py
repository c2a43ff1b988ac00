"""`waypost store migrate`: migrate a stopped gateway's store to this program's schema, keeping a copy."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bridge.durable_file import sync_path
from edge.appliance.store.recovery.inspection import Inspection
from edge.broker.store import schema
from edge.broker.store.errors import StoreTooNew
from edge.broker.store.faults import store_error_of
from edge.broker.store.limits import StoreLimits
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.sqlite import FILE_NAME, remove_unfinished


class Versions(NamedTuple):
    """Schema versions of the store and of this program."""

    store: int
    program: int


class Migrated(NamedTuple):
    """Result of a migration. `copy` is the old store, None when there was nothing to do."""

    before: int
    after: int
    copy: Path | None


def versions(data: Path) -> Versions:
    """Return both versions. Raises StoreError."""
    with Inspection.open(data / FILE_NAME) as inspection:
        return Versions(inspection.number("user_version"), len(schema.MIGRATIONS))


def migrate(data: Path, on_progress: Callable[[int, int], None]) -> Migrated:
    """Migrate forward. Raises StoreTooNew for a newer store, StoreBusy when the gateway runs, StoreError."""
    before, after = versions(data)
    if before > after:
        raise StoreTooNew(f"the store has schema {before}, newer than this program's {after}: it cannot be downgraded")
    lock = DirectoryLock(data)
    try:
        remove_unfinished(data)
        if before == after:
            return Migrated(before, after, None)
        path = data / FILE_NAME
        copy = data / f"{FILE_NAME}.schema-{before}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        try:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
                copy_of(connection, copy, on_progress)
                schema.configure(connection, StoreLimits())
                schema.prepare(connection)
        except sqlite3.Error as error:
            raise store_error_of(error, "migrating") from error
        return Migrated(before, after, copy)
    finally:
        lock.release()


def copy_of(connection: sqlite3.Connection, target: Path, on_progress: Callable[[int, int], None]) -> None:
    """Copy a database, with the content of its log, to another file, synced. Raises sqlite3.Error, OSError."""
    part = target.with_name(target.name + ".part")
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        page = int(connection.execute("PRAGMA page_size").fetchone()[0])
        with contextlib.closing(sqlite3.connect(part)) as copy:
            copy.execute("PRAGMA synchronous = FULL")
            connection.backup(
                copy, pages=256, progress=lambda _, left, all_: on_progress((all_ - left) * page, all_ * page)
            )
        sync_path(part)
        part.replace(target)
        sync_path(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
