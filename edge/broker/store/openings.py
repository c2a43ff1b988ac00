"""The openings of a store: how a copy that was put back is told from the store that went on.

Each opening has a random id, kept in the file with the ends of the logs at that moment, and in a file beside it. A hub
is told of them: one that knows a later opening than the file does has seen sequences the file does not know of.

There may be very many logs, of which few changed since the last start. So the ends are written in one of two ways:
whole, ``{"<log>": <next position>, …}``, or as ``[<number of an older opening>, {…}]``, what is other than in that one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from edge.broker.store.limits import OPENING_LOGS_WHOLE_MAX, OPENINGS_MAX

COMPANION: Final = "store.opened"
"""File beside the store with the id of the newest opening: a store put back without it is noticed at once."""
_ID_CHARACTERS: Final = 32
_TOLD_BY: Final = re.compile(rb"\{|\[([0-9]+),")
"""How ends begin: whole, or told by another opening."""


def known(connection: sqlite3.Connection) -> list[str]:
    """Ids of the openings the file knows of, the newest last; a rotten one is nobody's. Raises sqlite3.Error."""
    rows = connection.execute("SELECT CAST(id AS BLOB) FROM opening ORDER BY number")
    return [bytes(name or b"").decode("ascii", "replace") for (name,) in rows]


def ends(connection: sqlite3.Connection) -> Iterator[dict[int, int] | None]:
    """Where each log ended at the openings of `known`, the newest first; None for a rotten row. Read one by one, as
    there may be very many logs. Raises sqlite3.Error."""
    numbers = connection.execute("SELECT number FROM opening ORDER BY number DESC").fetchall()
    return _each(connection, [number for (number,) in numbers])


def _each(connection: sqlite3.Connection, numbers: Iterable[int]) -> Iterator[dict[int, int] | None]:
    """The ends at each of these openings. Those that one is told by are read once while they are the same."""
    whole: tuple[int, dict[int, int] | None] = (0, None)
    for number in numbers:
        found = _read(connection, number)
        if isinstance(found, tuple):
            base, changed = found
            if whole[0] != base:
                older = _read(connection, base)
                whole = (base, older if isinstance(older, dict) else None)
            yield None if whole[1] is None else {**whole[1], **changed}
        else:
            yield found


def _read(connection: sqlite3.Connection, number: int) -> dict[int, int] | tuple[int, dict[int, int]] | None:
    """The ends as they are written; None when they are not there, or rotten."""
    row = connection.execute("SELECT CAST(ends AS BLOB) FROM opening WHERE number = ?", (number,)).fetchone()
    with contextlib.suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode((row[0] if row else b"") or b"", type=dict[int, int] | tuple[int, dict[int, int]])
    return None


def enter(connection: sqlite3.Connection, ended: Mapping[int, int]) -> str:
    """Add this opening, durably; returns its id. `ended`: next position by log, and
    `contract.Lineage.reached`. Raises sqlite3.Error."""
    name = uuid.uuid4().hex
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "INSERT INTO opening SELECT coalesce(max(number), 0) + 1, ?, ?, ? FROM opening",
            (name, time.time_ns(), msgspec.json.encode(_packed(connection, ended)).decode()),
        )
        _forget_older(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return name


def _packed(
    connection: sqlite3.Connection, ended: Mapping[int, int]
) -> Mapping[int, int] | tuple[int, Mapping[int, int]]:
    """What to write: what has changed, where that is little."""
    if len(ended) < OPENING_LOGS_WHOLE_MAX:
        return ended
    number, base = max(_bases(connection).values(), default=0), None
    if number:
        base = _read(connection, number)
    if not isinstance(base, dict) or not base.keys() <= ended.keys():
        return ended
    changed = {log: end for log, end in ended.items() if base.get(log) != end}
    return (number, changed) if 2 * len(changed) < len(ended) else ended


def _bases(connection: sqlite3.Connection) -> dict[int, int]:
    """Of each opening, the one its ends are told by, which is itself where they are whole; rotten ones are left out."""
    found = {}
    for number, begins in connection.execute("SELECT number, substr(CAST(ends AS BLOB), 1, 24) FROM opening"):
        told = _TOLD_BY.match(bytes(begins or b""))
        if told is not None:
            found[number] = int(told[1]) if told[1] else number
    return found


def _forget_older(connection: sqlite3.Connection) -> None:
    """All but the newest `OPENINGS_MAX`, and those they are told by."""
    (newest,) = connection.execute("SELECT max(number) FROM opening").fetchone()
    oldest = newest - OPENINGS_MAX + 1
    needed = {base for number, base in _bases(connection).items() if number >= oldest}
    numbers = connection.execute("SELECT number FROM opening WHERE number < ?", (oldest,)).fetchall()
    connection.executemany("DELETE FROM opening WHERE number = ?", [each for each in numbers if each[0] not in needed])


def ends_after(connection: sqlite3.Connection, shared: str) -> dict[int, int]:
    """Where the logs ended at the first opening after the one called `shared`; at the oldest kept when there is none of
    that name. Where that is rotten, the one before counts: rather name a message anew than two alike. Raises
    sqlite3.Error."""
    names = known(connection)
    after = names.index(shared) + 1 if shared in names else 0
    rows = connection.execute("SELECT number FROM opening ORDER BY number LIMIT ?", (after + 1,)).fetchall()
    numbers = [number for (number,) in reversed(rows if after < len(names) else [])]
    return next((ended for ended in _each(connection, numbers) if ended is not None), {})


def beside(directory: Path) -> str | None:
    """The id in the companion file; None when there is none that can be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = (directory / COMPANION).read_text(encoding="ascii").strip()
        return name if len(name) == _ID_CHARACTERS else None
    return None


def remember(directory: Path, name: str) -> None:
    """Write the companion file: within one sector, so whole or not. Raises OSError."""
    descriptor = os.open(directory / COMPANION, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, name.encode() + b"\n", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
