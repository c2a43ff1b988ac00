"""Openings of a store, to detect a restored older copy.

Each opening has a random id. It is stored in the file, with the ends of the logs at that moment, and in a companion
file. Openings are reported to the hub. If the hub knows a later opening than the file, it has seen sequences that the
file does not know.

There may be very many logs, and few of them change between two starts. So the ends are stored in one of two forms:
complete, ``{"<log>": <next position>, …}``, or as the differences to an older opening, ``[<its number>, {…}]``.
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
"""File next to the store with the id of the newest opening. A store restored without it is detected at once."""
_ID_CHARACTERS: Final = 32
_FORMAT: Final = re.compile(rb"\{|\[([0-9]+),")
"""Start of stored ends: complete, or differences to another opening."""


def opening_ids(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of the openings in the file, newest last. A damaged id matches no other. Raises sqlite3.Error."""
    rows = connection.execute("SELECT CAST(id AS BLOB) FROM opening ORDER BY number")
    return [bytes(name or b"").decode("ascii", "replace") for (name,) in rows]


def ends(connection: sqlite3.Connection) -> Iterator[dict[int, int] | None]:
    """Iterate over the ends of the logs at the openings of `opening_ids`, newest first; None for a damaged row.

    They are read one by one, as there may be very many logs. Raises sqlite3.Error.
    """
    numbers = connection.execute("SELECT number FROM opening ORDER BY number DESC").fetchall()
    return _read_all(connection, [number for (number,) in numbers])


def _read_all(connection: sqlite3.Connection, numbers: Iterable[int]) -> Iterator[dict[int, int] | None]:
    """Iterate over the ends at these openings. A base opening is cached while it is the same."""
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
    """Return the ends of one opening as stored; None when they are missing or damaged."""
    row = connection.execute("SELECT CAST(ends AS BLOB) FROM opening WHERE number = ?", (number,)).fetchone()
    with contextlib.suppress(msgspec.DecodeError, TypeError):
        return msgspec.json.decode((row[0] if row else b"") or b"", type=dict[int, int] | tuple[int, dict[int, int]])
    return None


def record(connection: sqlite3.Connection, ended: Mapping[int, int]) -> str:
    """Store this opening durably, and return its id.

    `ended`: next position by log, and `contract.EpochLineage.reached`. Raises sqlite3.Error.
    """
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
    """Return the form to store: the differences if they are few."""
    if len(ended) < OPENING_LOGS_WHOLE_MAX:
        return ended
    number, base = max(_base_openings(connection).values(), default=0), None
    if number:
        base = _read(connection, number)
    if not isinstance(base, dict) or not base.keys() <= ended.keys():
        return ended
    changed = {log: end for log, end in ended.items() if base.get(log) != end}
    return (number, changed) if 2 * len(changed) < len(ended) else ended


def _base_openings(connection: sqlite3.Connection) -> dict[int, int]:
    """Return the base opening of each opening, which is itself for complete ends. Damaged ones are left out."""
    found = {}
    for number, begins in connection.execute("SELECT number, substr(CAST(ends AS BLOB), 1, 24) FROM opening"):
        matched = _FORMAT.match(bytes(begins or b""))
        if matched is not None:
            found[number] = int(matched[1]) if matched[1] else number
    return found


def _forget_older(connection: sqlite3.Connection) -> None:
    """Delete all openings except the newest `OPENINGS_MAX` and their base openings."""
    (newest,) = connection.execute("SELECT max(number) FROM opening").fetchone()
    oldest = newest - OPENINGS_MAX + 1
    needed = {base for number, base in _base_openings(connection).items() if number >= oldest}
    numbers = connection.execute("SELECT number FROM opening WHERE number < ?", (oldest,)).fetchall()
    connection.executemany("DELETE FROM opening WHERE number = ?", [each for each in numbers if each[0] not in needed])


def ends_after(connection: sqlite3.Connection, shared: str) -> dict[int, int]:
    """Return the ends of the logs at the first opening after `shared`, or at the oldest opening if it is unknown.

    If that row is damaged, the opening before it counts: it is better to rename a message than to use a name twice.
    Raises sqlite3.Error.
    """
    names = opening_ids(connection)
    after = names.index(shared) + 1 if shared in names else 0
    rows = connection.execute("SELECT number FROM opening ORDER BY number LIMIT ?", (after + 1,)).fetchall()
    numbers = [number for (number,) in reversed(rows if after < len(names) else [])]
    return next((ended for ended in _read_all(connection, numbers) if ended is not None), {})


def read_companion(directory: Path) -> str | None:
    """Return the id in the companion file; None when it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = (directory / COMPANION).read_text(encoding="ascii").strip()
        return name if len(name) == _ID_CHARACTERS else None
    return None


def write_companion(directory: Path, name: str) -> None:
    """Write the companion file. It fits into one sector, so the write is atomic. Raises OSError."""
    descriptor = os.open(directory / COMPANION, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, name.encode() + b"\n", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
