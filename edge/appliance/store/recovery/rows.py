"""Rows of the new file of a repair."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from edge.appliance.store.recovery.inspection import key_of, log_of
from edge.broker.store.limits import POSITION_MAX

OF_LOG: Final = "WHERE key >= ? AND key <= ? ORDER BY key"
_EXTENTS: Final = f"SELECT key, messages FROM segment {OF_LOG}"  # noqa: S608 - a constant


def insert(out: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    marks = ", ".join("?" * len(columns))
    out.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608


def bounds(log: int) -> tuple[int, int]:
    """Return the smallest and largest key of a log's segments: the parameters of `OF_LOG`."""
    return key_of(log, 0), key_of(log, POSITION_MAX)


def end_of(out: sqlite3.Connection, log: int) -> int:
    """Return the end of the newest kept segment of a log; 0 without one."""
    row = out.execute(f"{_EXTENTS} DESC LIMIT 1", bounds(log)).fetchone()
    return 0 if row is None else log_of(row[0])[1] + int(row[1])


def lacks(out: sqlite3.Connection, log: int, first: int, end: int) -> bool:
    """Return True when a log has a gap in the positions ``first <= p < end``."""
    expected = first
    for key, messages in out.execute(_EXTENTS, bounds(log)):
        if log_of(key)[1] > expected:
            return True
        expected = max(expected, log_of(key)[1] + messages)
    return expected < end
