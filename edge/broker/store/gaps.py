"""Gaps between the segments of a log: a gap with a known reason is allowed, any other one is damage.

The segments of a log follow one another without a gap, from the first position kept to the end, even if messages are
missing inside them (`segment`). Gaps have three possible reasons, each of which is recorded in the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final

import msgspec

from edge.broker.model.ranges import Ranges
from edge.broker.store.reservation import MEMORY, range_key, unpack_range

GAPS: Final = "gaps"
"""Key of table ``meta`` with the gaps left by a repair, as JSON ``[[log, first, last], ...]``."""


def gaps_in(value: object) -> list[tuple[int, int, int]]:
    """Return the gaps in the value of `GAPS`; empty when it cannot be decoded."""
    try:
        return [] if value is None else msgspec.json.decode(str(value), type=list[tuple[int, int, int]])
    except msgspec.DecodeError:
        return []


def is_accounted_for(connection: sqlite3.Connection, log: int, first: int, last: int) -> bool:
    """Return True when the absence of positions ``first..last`` of a log has a known reason. Raises sqlite3.Error.

    They were deleted from the front, or a repair entered them into the ledger, or they were reserved for messages in
    memory before a crash. The first commit after the crash covers those (`crash_losses.CrashLosses`).
    """
    accounted = Ranges()
    for (kept_from,) in connection.execute("SELECT first FROM log WHERE log = ?", (log,)):
        accounted.add(-1, kept_from - 1)
    for (value,) in connection.execute("SELECT value FROM meta WHERE key = ?", (GAPS,)):
        for number, low, high in gaps_in(value):
            if number == log:
                accounted.add(low, high)
    end = reserved_to(connection, log)
    if end is not None and last == end - 1:
        accounted.add(first, last)
    return accounted.within(first, last) == [(first, last)]


def reserved_to(connection: sqlite3.Connection, log: int) -> int | None:
    """Return the end of a log while some of its positions are only reserved; else None. Raises sqlite3.Error."""
    key = range_key(log, None)
    for (value,) in connection.execute("SELECT value FROM state WHERE kind = ? AND key = ?", (MEMORY, key)):
        with contextlib.suppress(ValueError):
            reserved = unpack_range(key, value)
            return reserved.end if reserved.base < reserved.end else None
    return None
