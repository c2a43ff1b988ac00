"""Opens a store: one SQLite file in a directory of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from bridge.durable_file import sync_path
from edge.broker.store import epochs, openings, schema, wal, wear
from edge.broker.store.checkpointer import Checkpointer
from edge.broker.store.connections import connect_reader, connect_writer
from edge.broker.store.engine import StoreEngine
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreDamaged, StoreError, StoreInaccessible
from edge.broker.store.faults import ADVICE, store_error_of, store_error_of_system
from edge.broker.store.files import StoreFiles
from edge.broker.store.limits import StoreLimits
from edge.broker.store.loading import boot_of, load
from edge.broker.store.lock import LOCK_NAME, DirectoryLock
from edge.broker.store.medium import Post
from edge.broker.store.moved import require_unmoved
from edge.broker.store.problems import Problems
from edge.broker.store.queries import SideQueries
from edge.broker.store.reader import StoreReader
from edge.broker.store.records import Summary
from edge.broker.store.reservation import SPILLS_LOG
from edge.broker.store.sqlite_medium import SqliteMedium
from edge.broker.store.tables import StoreTables
from edge.broker.store.writer import StoreWriter
from edge.health.data_owner import directory_fault

logger = logging.getLogger(__name__)

STEM: Final = "store"
"""Prefix of the names of all files of a store."""
FILE_NAME: Final = "store.sqlite"
REPAIRED_NAME: Final = "store.sqlite.repaired"
"""Repaired store before it replaces the damaged one. While it exists, no store may be opened."""

SALVAGE_NAME: Final = f"{FILE_NAME}.salvage"
REPAIRING_NAME: Final = f"{FILE_NAME}.repairing"
"""Work files of a repair: copies that only that repair can use."""
UNFINISHED: Final = (f"{SALVAGE_NAME}*", f"{REPAIRING_NAME}*", f"{FILE_NAME}.schema-*.part*")
"""Incomplete copies left by a killed repair or migration. The next one creates them again."""
KEPT: Final = (f"{FILE_NAME}.damaged-*", f"{FILE_NAME}.schema-*")
"""Complete copies kept by a repair or a migration, until the operator removes them."""

SqliteStore: TypeAlias = StoreEngine[SqliteMedium]


def open_store(
    directory: Path,
    *,
    post: Post,
    clock: Callable[[], float] = time.monotonic,
    limits: StoreLimits | None = None,
    summary: Summary | None = None,
    moving: bool = False,
) -> SqliteStore:
    """Open the store in `directory`, and create both if they are new. New files are removed again if that fails.

    `post` runs a callback on the loop's thread (``loop.call_soon_threadsafe``). `summary` thins messages (None: no
    thinning). `moving`: open the directory of a gateway that was moved, too.

    Raises StoreBusy, StoreTooNew, StoreDamaged, StoreInaccessible, or StoreFull when the file has to be created or
    migrated and cannot be written.
    """
    path = directory / FILE_NAME
    with contextlib.ExitStack() as undo:
        undo.callback(_remove_empty, _missing(directory))
        make_directory(directory)
        lock = DirectoryLock(directory)
        if _store_files(directory):
            undo.callback(lock.release)
            remove_unfinished(directory)
        else:
            undo.callback(lock.discard)
            undo.callback(_remove_store, directory)
        if not moving:
            require_unmoved(directory)
        if (directory / REPAIRED_NAME).exists():
            raise StoreDamaged(f"{path}: a repair was interrupted: run `waypost store repair --yes` again")
        try:
            store = _open_file(path, lock, undo, post, clock, limits or StoreLimits(), summary)
        except sqlite3.Error as error:
            raise store_error_of(error, f"opening {path}") from error
        except OSError as error:
            raise store_error_of_system(error, f"opening {path}") from error
        except StoreError as error:
            raise type(error)(f"{path}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:  # a damaged page can change the type of a column
            raise StoreDamaged(f"{path}: a table is damaged ({error}): {ADVICE}") from error
        undo.pop_all()
    return store


def check_directory(directory: Path) -> None:
    """Check, without any change, that a store can be opened in `directory`.

    Call it before other files are created for that store. Raises StoreDamaged.
    """
    path = directory / FILE_NAME
    try:
        schema.check_ours(path)
    except StoreError as error:
        raise type(error)(f"{path}: {error}") from error


def _open_file(
    path: Path,
    lock: DirectoryLock,
    undo: contextlib.ExitStack,
    post: Post,
    clock: Callable[[], float],
    limits: StoreLimits,
    summary: Summary | None,
) -> SqliteStore:
    """Open the file and create the store. `undo` closes everything that was opened.

    Raises StoreError, sqlite3.Error, OSError, or TypeError, ValueError and OverflowError for damaged data.
    """
    schema.check_ours(path)
    logged = wal.make_durable(path)
    _make_file(path)
    connection = undo.enter_context(contextlib.closing(connect_writer(path, limits)))
    current = schema.prepare(connection)
    limits = msgspec.structs.replace(limits, page_bytes=schema.page_bytes(connection))
    _sync_directory(path.parent)
    side = undo.enter_context(contextlib.closing(connect_reader(path, limits)))
    queries, problems = SideQueries(side), Problems()
    tables = StoreTables.empty(limits, clock, queries)
    boot = boot_of(side)
    load(tables, side, queries, limits)
    lineage = _enter_epochs(connection, side, path.parent, tables, queries, current)
    device = wear.BlockDevice.of(path)
    meter = wear.WearMeter(wear.load(side), lambda: wear.read_counters(device), clock)
    background = undo.enter_context(contextlib.closing(connect_writer(path, limits)))
    reading = undo.enter_context(contextlib.closing(connect_reader(path, limits)))
    files = StoreFiles(path)
    checkpointer = Checkpointer(path, connection, background, limits, problems, logged_bytes=logged)
    medium = SqliteMedium(
        path,
        limits,
        side=side,
        queries=queries,
        writer=StoreWriter(connection, post, tables.ledger, limits, checkpointer, files, problems),
        reader=StoreReader(reading, post, tables.cursors.skip, problems, limits),
        files=files,
        problems=problems,
        lock=lock,
        epochs=lineage,
        openings=openings.opening_ids(side),
        boot=boot,
        device=device,
        meter=meter,
        summary=summary,
    )
    return StoreEngine(tables, medium, post=post, clock=clock, limits=limits)


def _enter_epochs(
    connection: sqlite3.Connection,
    side: sqlite3.Connection,
    directory: Path,
    tables: StoreTables,
    queries: SideQueries,
    current: str,
) -> Epochs:
    """Record this opening, and start a new epoch for a restored copy.

    If the medium cannot be written now, the store continues with its previous opening.
    """
    lineage = Epochs.load(side, current)
    known, beside = openings.opening_ids(side), openings.read_companion(directory)
    unknown = beside is not None and beside not in known
    starts = {**dict(queries.sequences()), **tables.counters.known} if unknown else {}
    if any(starts.values()):
        name = epochs.start_epoch(connection, starts, f"{openings.COMPANION} names an opening the store does not know")
        lineage.reload(side)
        logger.warning("an older copy of this store was restored; new messages are of epoch %s", name)
    try:
        ends = {row.log: row.next for row in tables.logs.rows()}
        openings.record(connection, {SPILLS_LOG: tables.counters.spills, **ends})
        openings.write_companion(directory, openings.opening_ids(side)[-1])
    except (sqlite3.Error, OSError) as error:
        logger.warning("this opening cannot be recorded (%s)", error)
    return lineage


def make_directory(directory: Path) -> None:
    """Create `directory` and its parents durably. Raises StoreInaccessible."""
    missing = _missing(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in missing:
            _sync_directory(folder.parent)
        fault = directory_fault(directory)
    except OSError as error:
        raise StoreInaccessible(
            f"cannot create data directory {directory}: {error.strerror}; create it yourself, or use another one"
        ) from error
    if fault is not None:
        raise StoreInaccessible(fault)


def remove_unfinished(directory: Path) -> None:
    """Remove the copies left by a killed repair or migration. The caller holds the lock, as those do."""
    for path in sorted(path for pattern in UNFINISHED for path in directory.glob(pattern)):
        with contextlib.suppress(OSError):  # the next start tries again
            size = path.lstat().st_size
            path.unlink()
            logger.warning("%s is removed: a copy of %d bytes left by an interrupted command", path, size)


def kept_copies(directory: Path) -> dict[Path, int]:
    """Return the complete copies kept by repairs and migrations, with their sizes in bytes."""
    found = {path for pattern in KEPT for path in directory.glob(pattern) if path.suffix != ".part"}
    return {path: path.stat().st_size for path in sorted(found) if path.is_file()}


def _missing(directory: Path) -> list[Path]:
    """Return `directory` and its parents as far as they do not exist, deepest first."""
    return [folder for folder in (directory, *directory.parents) if not folder.exists()]


def _remove_empty(folders: Iterable[Path]) -> None:
    with contextlib.suppress(OSError):  # another process created files there
        for folder in folders:
            folder.rmdir()


def _store_files(directory: Path) -> list[Path]:
    """Return the files of a store or of its remains, without the lock file."""
    return [path for path in directory.glob(f"{STEM}.*") if path.name != LOCK_NAME]


def _remove_store(directory: Path) -> None:
    """Remove a new store after a failed opening. Its lock is held, and there was no store when it was taken."""
    for path in _store_files(directory):
        with contextlib.suppress(OSError):
            path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make the name of the database file durable (SQLite does that only for its log)."""
    with contextlib.suppress(OSError):  # the file system does not support it
        sync_path(directory)


def _make_file(path: Path) -> None:
    """Create the file with access for its owner only, as SQLite would make it world-readable. Raises StoreInaccessible.

    Call it before any connection exists. Closing a descriptor of the file drops every lock of the process on it
    (fcntl(2)). Then another program that closes the file would believe to be the last one, and delete the log.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreInaccessible(f"{error.strerror}; check owner and mode of the data directory") from error
