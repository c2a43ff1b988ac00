"""The openings of a store: how a copy that was put back is told from the store that went on.

Each opening has a random id, kept in the file with the ends of the logs at that moment, and in a file beside it. A hub
is told of them: one that knows a later opening than the file does has seen sequences the file does not know of.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from edge.broker.store.limits import OPENINGS_MAX

COMPANION: Final = "store.opened"
"""File beside the store with the id of the newest opening: a store put back without it is noticed at once."""
_ID_CHARACTERS: Final = 32


def known(connection: sqlite3.Connection) -> list[str]:
    """Ids of the openings the file knows of, the newest last; a rotten one is nobody's. Raises sqlite3.Error."""
    rows = connection.execute("SELECT CAST(id AS BLOB) FROM opening ORDER BY number")
    return [bytes(name or b"").decode("ascii", "replace") for (name,) in rows]


def ends(connection: sqlite3.Connection) -> Iterator[dict[int, int] | None]:
    """Where each log ended at the openings of `known`, the newest first; None for a rotten row. Read one by one, as
    there may be very many logs. Raises sqlite3.Error."""
    numbers = connection.execute("SELECT number FROM opening ORDER BY number DESC").fetchall()
    for number in numbers:
        ((packed,),) = connection.execute("SELECT CAST(ends AS BLOB) FROM opening WHERE number = ?", number).fetchall()
        yield _ends(packed)


def _ends(packed: bytes | None) -> dict[int, int] | None:
    with contextlib.suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode(packed or b"", type=dict[int, int])
    return None


def enter(connection: sqlite3.Connection, ended: Mapping[int, int]) -> str:
    """Add this opening, durably; returns its id. `ended`: next position by log, and
    `contract.Lineage.reached`. Raises sqlite3.Error."""
    name = uuid.uuid4().hex
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "INSERT INTO opening SELECT coalesce(max(number), 0) + 1, ?, ?, ? FROM opening",
            (name, time.time_ns(), msgspec.json.encode(ended).decode()),
        )
        connection.execute("DELETE FROM opening WHERE number <= (SELECT max(number) FROM opening) - ?", (OPENINGS_MAX,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return name


def ends_after(connection: sqlite3.Connection, shared: str) -> dict[int, int]:
    """Where the logs ended at the first opening after the one called `shared`; at the oldest kept when there is none of
    that name. Where that is rotten, the one before counts: rather name a message anew than two alike. Raises
    sqlite3.Error."""
    names = known(connection)
    after = names.index(shared) + 1 if shared in names else 0
    rows = connection.execute("SELECT CAST(ends AS BLOB) FROM opening ORDER BY number LIMIT ?", (after + 1,)).fetchall()
    found = [_ends(packed) for (packed,) in reversed(rows if after < len(names) else [])]
    return next((ended for ended in found if ended is not None), {})


def beside(directory: Path) -> str | None:
    """The id in the companion file; None when there is none that can be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = (directory / COMPANION).read_text(encoding="ascii").strip()
        return name if len(name) == _ID_CHARACTERS else None
    return None


def remember(directory: Path, name: str) -> None:
    """Write the companion file: within one sector, so whole or not. Raises OSError."""
    descriptor = os.open(directory / COMPANION, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, name.encode() + b"\n", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
