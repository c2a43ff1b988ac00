"""Opening a store: one SQLite file in a directory of its own."""

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

from edge.broker.store import epochs, openings, schema, wal, wear
from edge.broker.store.checkpointer import Checkpointer
from edge.broker.store.connections import connect_reader, connect_writer
from edge.broker.store.engine import StoreEngine
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreDamaged, StoreError, StoreInaccessible
from edge.broker.store.faults import ADVICE, meaning, meaning_of_system
from edge.broker.store.files import StoreFiles
from edge.broker.store.limits import StoreLimits
from edge.broker.store.loading import boot_of, load
from edge.broker.store.lock import LOCK_NAME, DirectoryLock
from edge.broker.store.medium import Post
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
"""What the names of all files of a store begin with."""
FILE_NAME: Final = "store.sqlite"
REPAIRED_NAME: Final = "store.sqlite.repaired"
"""A repaired store on its way to its place; until it is there, nothing else must be opened."""

SALVAGE_NAME: Final = f"{FILE_NAME}.salvage"
REPAIRING_NAME: Final = f"{FILE_NAME}.repairing"
"""Work files of a repair; both are copies that only that repair can use."""
UNFINISHED: Final = (f"{SALVAGE_NAME}*", f"{REPAIRING_NAME}*", f"{FILE_NAME}.schema-*.part*")
"""Copies of a store that a killed repair or migration left; the next one makes each again."""
KEPT: Final = (f"{FILE_NAME}.damaged-*", f"{FILE_NAME}.schema-*")
"""Whole copies that a repair or a migration kept on purpose, until the operator removes them."""

SqliteStore: TypeAlias = StoreEngine[SqliteMedium]


def open_store(
    directory: Path,
    *,
    post: Post,
    clock: Callable[[], float] = time.monotonic,
    limits: StoreLimits | None = None,
    summary: Summary | None = None,
) -> SqliteStore:
    """Open the store in `directory`, making both when they are new; what was made is removed where that fails.

    `post` runs a callback on the loop's thread (``loop.call_soon_threadsafe``); `summary` says how messages are thinned
    (None: not at all). Raises StoreBusy, StoreTooNew, StoreDamaged, StoreInaccessible, or StoreFull when the file has
    to be made or migrated and cannot be written.
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
        if (directory / REPAIRED_NAME).exists():
            raise StoreDamaged(f"{path}: a repair was interrupted: run `waypost store repair --yes` again")
        try:
            store = _opened(path, lock, undo, post, clock, limits or StoreLimits(), summary)
        except sqlite3.Error as error:
            raise meaning(error, f"opening {path}") from error
        except OSError as error:
            raise meaning_of_system(error, f"opening {path}") from error
        except StoreError as error:
            raise type(error)(f"{path}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:  # a rotten page gives columns other types
            raise StoreDamaged(f"{path}: a table is damaged ({error}): {ADVICE}") from error
        undo.pop_all()
    return store


def check_directory(directory: Path) -> None:
    """Look, without changing anything, whether what is in `directory` keeps a store from being opened there.

    Who is about to make things for that store asks first. Raises StoreDamaged.
    """
    path = directory / FILE_NAME
    try:
        schema.check_ours(path)
    except StoreError as error:
        raise type(error)(f"{path}: {error}") from error


def _opened(
    path: Path,
    lock: DirectoryLock,
    undo: contextlib.ExitStack,
    post: Post,
    clock: Callable[[], float],
    limits: StoreLimits,
    summary: Summary | None,
) -> SqliteStore:
    """`undo` closes what was opened. Raises StoreError, sqlite3.Error, OSError, or TypeError, ValueError and
    OverflowError for what is damaged."""
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
    meter = wear.WearMeter(wear.load(side), lambda: wear.counters(device), clock)
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
        openings=openings.known(side),
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
    """Enter this opening. A medium that cannot take that now goes on without: it is known by the one before."""
    lineage = Epochs.load(side, current)
    known, beside = openings.known(side), openings.beside(directory)
    unknown = beside is not None and beside not in known
    starts = {**dict(queries.sequences()), **tables.counters.known} if unknown else {}
    if any(starts.values()):
        name = epochs.start_epoch(connection, starts, f"{openings.COMPANION} names an opening the store does not know")
        lineage.reload(side)
        logger.warning("an older copy of this store was put back; new messages are of epoch %s", name)
    try:
        ends = {row.log: row.next for row in tables.logs.rows()}
        openings.enter(connection, {SPILLS_LOG: tables.counters.spills, **ends})
        openings.remember(directory, openings.known(side)[-1])
    except (sqlite3.Error, OSError) as error:
        logger.warning("this opening cannot be remembered (%s)", error)
    return lineage


def make_directory(directory: Path) -> None:
    """Make `directory` durably, with the folders above that are missing. Raises StoreInaccessible."""
    missing = _missing(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in missing:
            _sync_directory(folder.parent)
        fault = directory_fault(directory)
    except OSError as error:
        raise StoreInaccessible(
            f"cannot make data directory {directory}: {error.strerror}; make it yourself, or give another one"
        ) from error
    if fault is not None:
        raise StoreInaccessible(fault)


def remove_unfinished(directory: Path) -> None:
    """Remove the copies that a killed repair or migration left. The caller holds the lock, as those do."""
    for path in sorted(path for pattern in UNFINISHED for path in directory.glob(pattern)):
        with contextlib.suppress(OSError):  # the next start tries again
            size = path.lstat().st_size
            path.unlink()
            logger.warning("%s is removed: a copy of %d bytes that an interrupted command left", path, size)


def kept_copies(directory: Path) -> dict[Path, int]:
    """Return the whole copies of the store that repairs and migrations kept, each with its size in bytes."""
    found = {path for pattern in KEPT for path in directory.glob(pattern) if path.suffix != ".part"}
    return {path: path.stat().st_size for path in sorted(found) if path.is_file()}


def _missing(directory: Path) -> list[Path]:
    """Of `directory` and the folders above it those that are not there, the deepest first."""
    return [folder for folder in (directory, *directory.parents) if not folder.exists()]


def _remove_empty(folders: Iterable[Path]) -> None:
    with contextlib.suppress(OSError):  # somebody has put something there
        for folder in folders:
            folder.rmdir()


def _store_files(directory: Path) -> list[Path]:
    """The files of a store, or of what was one; without the lock's."""
    return [path for path in directory.glob(f"{STEM}.*") if path.name != LOCK_NAME]


def _remove_store(directory: Path) -> None:
    """Remove a store nobody has used: its lock is held, and there was none when it was taken."""
    for path in _store_files(directory):
        with contextlib.suppress(OSError):
            path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make the file's name as durable as its contents (SQLite does so for its log, not for the database)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # file systems without the notion
        os.fsync(descriptor)
    os.close(descriptor)


def _make_file(path: Path) -> None:
    """For its owner only: SQLite would make it world-readable. Raises StoreInaccessible.

    Before any connection: closing a descriptor of the file takes every lock of the process on it along (fcntl(2)), and
    whoever else closes the file then believes to be the last, and deletes the log.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreInaccessible(f"{error.strerror}; check owner and mode of the data directory") from error
