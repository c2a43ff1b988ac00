"""Consistency checks when a store is opened.

Segments have a checksum, and readers detect a missing one (`reader`). Rows of the small tables have no checksum, so
they are checked against other data: a log starts with its first segment and ends with its newest one, a cursor is
within its log, counters are beyond all used numbers, and the indexes of a table match the table. Reads O(logs +
cursors).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from edge.broker.store import segment
from edge.broker.store.cursors import CursorState
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.faults import ADVICE
from edge.broker.store.gaps import is_accounted_for
from edge.broker.store.limits import NEWEST_BYTES, NEWEST_SEGMENTS, NEWEST_SEGMENTS_MAX, POSITION_BITS, POSITION_MAX
from edge.broker.store.logs import LogTable
from edge.broker.store.segment import SegmentDamaged, SegmentRow

ReadCounters = Callable[[Iterable[str]], Mapping[str, int]]
"""Returns the next sequence of addresses. Addresses without one are left out."""

SMALL_TABLES: Final = ("meta", "log", "cursor")
"""Small tables that lead to messages. A missing row would make messages unreachable."""
_PRAGMAS: Final = (("encoding", "UTF-8"), ("auto_vacuum", 0))
"""Settings of every store. With other values SQLite reads names wrongly, or overwrites pages in use."""
_FIRST: Final = f"(log.log << {POSITION_BITS})"
_LAST: Final = f"(log.log << {POSITION_BITS} | {POSITION_MAX})"
_BOUNDS: Final = "SELECT min(key), max(key) FROM segment WHERE key >= ? AND key <= ?"
_ENDS: Final = f"""
SELECT log, first, next, lowest, newest, (SELECT messages FROM segment WHERE key = newest) FROM (
    SELECT log, first, next,
        (SELECT min(key) FROM segment WHERE key >= {_FIRST} AND key <= {_LAST}) AS lowest,
        (SELECT max(key) FROM segment WHERE key >= {_FIRST} AND key <= {_LAST}) AS newest
    FROM log)
"""  # noqa: S608 - constants of ours
"""Bounds of each log, its first and its last segment, and the messages of the last one."""
_NEWEST: Final = "SELECT key, length(data) FROM segment WHERE key >= ? AND key <= ? ORDER BY key DESC LIMIT ?"


def check_tables(connection: sqlite3.Connection) -> None:
    """Check settings and small tables. Raises StoreDamaged, sqlite3.Error."""
    for pragma, expected in _PRAGMAS:
        (found,) = connection.execute(f"PRAGMA {pragma}").fetchone()
        if found != expected:
            raise StoreDamaged(f"{pragma} is {found} instead of {expected}: {ADVICE}")
    for table in SMALL_TABLES:
        for (line,) in connection.execute(f"PRAGMA integrity_check({table})"):
            if line != "ok":
                raise StoreDamaged(f"table {table} is damaged ({line}): {ADVICE}")
    logs = [number for (number,) in connection.execute("SELECT log FROM log ORDER BY log")]
    lowest, highest = connection.execute(_BOUNDS, (-1 << 63, (1 << 63) - 1)).fetchone()
    if logs != list(range(1, len(logs) + 1)) or not _within(lowest, highest, len(logs)):
        raise StoreDamaged(f"a row of table log is missing, or a segment belongs to no log: {ADVICE}")
    if connection.execute("SELECT 1 FROM cursor WHERE position < 0 LIMIT 1").fetchone() is not None:
        raise StoreDamaged(f"a cursor is before the beginning: {ADVICE}")


def check_logs(connection: sqlite3.Connection, logs: LogTable, counters: ReadCounters) -> None:
    """Check that each log has segments from its first position to its end, and that the newest are counted.

    Raises StoreDamaged, sqlite3.Error.
    """
    left, segments = NEWEST_BYTES, NEWEST_SEGMENTS_MAX
    for log, first, next_, lowest, newest, messages in connection.execute(_ENDS):
        state = logs.in_use.get(log)
        end = next_ if state is None else state.next
        if lowest is None:
            if first != end:
                _check_gap(connection, logs, log, first, end)
            continue
        if lowest & POSITION_MAX != first:
            _check_gap(connection, logs, log, first, lowest & POSITION_MAX)
        if (newest & POSITION_MAX) + messages != end:
            _check_end(connection, logs, log, newest, (newest & POSITION_MAX) + messages)
        if left < 0 or segments <= 0:
            continue
        for key, size in connection.execute(_NEWEST, (log << POSITION_BITS, newest, NEWEST_SEGMENTS)).fetchall():
            left -= size
            segments -= 1
            if left < 0:
                break
            _check_counted(logs.name(log), _read_names(connection, key)[1], counters)


def check_cursor(cursor: CursorState) -> None:
    """Check that a cursor is not beyond the end of its log, which would skip new messages. Raises StoreDamaged."""
    log, progress = cursor.log, cursor.progress
    end = max((last + 1 for _, last in progress.above), default=progress.position)
    if end > log.next:
        raise StoreDamaged(f"cursor {cursor.name!r} is at {end}, its log {log.name!r} ends at {log.next}: {ADVICE}")


def _within(lowest: int | None, highest: int | None, logs: int) -> bool:
    return lowest is None or highest is None or (lowest >> POSITION_BITS > 0 and highest >> POSITION_BITS <= logs)


def _check_gap(connection: sqlite3.Connection, logs: LogTable, log: int, expected: int, position: int) -> None:
    name = logs.name(log)
    if position < expected:
        raise StoreDamaged(f"log {name!r}: position {position} is where {expected} should be: {ADVICE}")
    if position > expected and not is_accounted_for(connection, log, expected, position - 1):
        raise StoreDamaged(f"log {name!r}: positions {expected} to {position - 1} are missing: {ADVICE}")


def _check_end(connection: sqlite3.Connection, logs: LogTable, log: int, newest: int, end: int) -> None:
    """Check a log with a newest segment that ends at `end`, not at the end of the log."""
    following = logs.bounds(log)[1]
    valid, _ = _read_names(connection, newest)
    if valid or newest & POSITION_MAX >= following:  # a reader of a damaged one enters the losses up to the log's end
        _check_gap(connection, logs, log, end, following)


def _read_names(connection: sqlite3.Connection, key: int) -> tuple[bool, list[segment.SegmentRunName]]:
    """Return whether a segment is valid, and the names of its runs."""
    row = SegmentRow._make(connection.execute(f"{segment.SELECT} WHERE key = ?", (key,)).fetchone())
    try:
        return True, segment.run_names(row)
    except SegmentDamaged:
        return False, []


def _check_counted(log: str, heads: Iterable[segment.SegmentRunName], counters: ReadCounters) -> None:
    ends = {head.address: head.sequence + head.messages for head in heads}
    counted = counters(ends)
    for address, end in ends.items():
        if counted.get(address, 0) < end:
            raise StoreDamaged(
                f"log {log!r}: the counter of address {address!r} is at {counted.get(address, 0)}, and "
                f"{end - 1} was given: {ADVICE}"
            )
