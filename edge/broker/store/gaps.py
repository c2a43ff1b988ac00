"""Positions at which a log has no segment: which of them are accounted for. Any other is damage.

Segments of a log lie behind one another without a gap, from the first position kept to its end, also where messages
are missing in them (`segment`). Gaps there are for three reasons, and the file says each of them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final

import msgspec

from edge.broker.model.ranges import Ranges
from edge.broker.store.reservation import MEMORY, range_key, unpack_range

GAPS: Final = "gaps"
"""Key of table ``meta``: positions a repair left missing, as JSON ``[[log, first, last], ...]``."""


def gaps_in(value: object) -> list[tuple[int, int, int]]:
    """The gaps that the value of `GAPS` names; none when it cannot be read."""
    try:
        return [] if value is None else msgspec.json.decode(str(value), type=list[tuple[int, int, int]])
    except msgspec.DecodeError:
        return []


def is_accounted_for(connection: sqlite3.Connection, log: int, first: int, last: int) -> bool:
    """True when nothing is lost although no segment has positions ``first..last`` of a log. Raises sqlite3.Error.

    They were deleted from the front, or a repair entered them into the ledger, or a crash left them reserved for
    messages that were in memory only: the first commit after it covers them (`crash_losses.CrashLosses`).
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
    """The end of a log as long as some of its positions are only reserved; else None. Raises sqlite3.Error."""
    key = range_key(log, None)
    for (value,) in connection.execute("SELECT value FROM state WHERE kind = ? AND key = ?", (MEMORY, key)):
        with contextlib.suppress(ValueError):
            reserved = unpack_range(key, value)
            return reserved.end if reserved.base < reserved.end else None
    return None
