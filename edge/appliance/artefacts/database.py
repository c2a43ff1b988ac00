"""SQLite files of the artefacts. A damaged one is replaced, as its content can be fetched or reported again.

They block: use each from one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.appliance.artefacts.errors import IndexUnusable


def open_or_replace(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Open or create a file, and replace a damaged one. Raises `IndexUnusable`.

    `prepare` makes the tables of a new file; it raises `sqlite3.DatabaseError` for a file to replace.
    """
    try:
        return _open(path, prepare)
    except sqlite3.OperationalError as error:
        raise IndexUnusable(f"{path}: {error}") from error
    except sqlite3.DatabaseError:  # not a database, or damaged
        for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
            each.unlink(missing_ok=True)
    with translated_errors(path):
        return _open(path, prepare)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into `IndexUnusable`. `path`: the file that it names."""
    try:
        yield
    except sqlite3.Error as error:
        raise IndexUnusable(f"{path}: {error}") from error


def is_full(error: IndexUnusable) -> bool:
    """Return whether a database could not be written because the card is full: then it is not damaged."""
    return getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def require_intact(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` for a damaged file, wherever the damage is."""
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("the database is damaged")


def _open(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection
