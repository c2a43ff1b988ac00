"""Logs nobody uses, as columns of numbers: 26 bytes each, where a log and its cursor as objects take 600.

What is known of a log that has one cursor or none, of which nothing is acknowledged out of order, is six numbers. Those
of a queue nobody sends to or receives from are kept here until somebody asks for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from edge.broker.model.narrow_numbers import NarrowNumbers
from edge.broker.store.sparse_numbers import SparseNumbers

CURSOR_NAMES_MAX: Final = 0xFFFF
"""Names of cursors here; all queues use the same one."""
_NO_LOG: Final = 0


class RestingLog(NamedTuple):
    """A log with its cursor; `cursor` is 0 where it has none."""

    first: int
    next: int
    bytes: int
    cursor: int = 0
    cursor_name: str = ""
    position: int = 0


class LogsAtRest:
    """By number of the log."""

    def __init__(self) -> None:
        self._firsts = NarrowNumbers()
        self._ends = NarrowNumbers()
        """The next position and 1; `_NO_LOG`: it is not here."""
        self._bytes = NarrowNumbers()
        self._cursors = NarrowNumbers()
        self._positions = NarrowNumbers()
        self._cursor_names = array("H")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        """Of cursors' names, in `_names`."""
        self._logs = SparseNumbers()
        """By cursor."""

    def __contains__(self, log: int) -> bool:
        return 0 <= log < len(self._ends) and self._ends[log] != _NO_LOG

    def __iter__(self) -> Iterator[int]:
        return (log for log, end in enumerate(self._ends) if end != _NO_LOG)

    def put(self, log: int, row: RestingLog) -> bool:
        """False, and nothing happens, when there are too many names of cursors."""
        name = self._number(row.cursor_name)
        if name is None:
            return False
        missing = log + 1 - len(self._ends)
        if missing > 0:
            for column in (self._firsts, self._ends, self._bytes, self._cursors, self._positions):
                column.extend(missing)
            self._cursor_names.extend([0] * missing)
        self._firsts[log], self._ends[log], self._bytes[log] = row.first, row.next + 1, row.bytes
        self._cursors[log], self._positions[log], self._cursor_names[log] = row.cursor, row.position, name
        if row.cursor:
            self._logs.put(row.cursor, log)
        return True

    def set_cursor(self, log: int, cursor: int, name: str, position: int) -> bool:
        """The cursor of a log that has none yet; False where it has one, ends before the cursor, or is not here."""
        if log not in self or self._cursors[log] or position >= self._ends[log]:
            return False
        number = self._number(name)
        if number is None:
            return False
        self._cursors[log], self._cursor_names[log] = cursor, number
        self._positions[log] = max(position, self._firsts[log])
        self._logs.put(cursor, log)
        return True

    def take(self, log: int) -> RestingLog:
        """It is not here any more. Raises KeyError when it was not."""
        row = self[log]
        self._ends[log] = _NO_LOG
        if row.cursor:
            self._logs.remove(row.cursor)
        return row

    def __getitem__(self, log: int) -> RestingLog:
        """Raises KeyError."""
        if log not in self:
            raise KeyError(log)
        return RestingLog(
            self._firsts[log],
            self._ends[log] - 1,
            self._bytes[log],
            self._cursors[log],
            self._names[self._cursor_names[log]],
            self._positions[log],
        )

    def bounds(self, log: int) -> tuple[int, int]:
        """(first position kept, next position). Raises KeyError."""
        if log not in self:
            raise KeyError(log)
        return self._firsts[log], self._ends[log] - 1

    def bytes(self, log: int) -> int:
        """Bytes of bodies it keeps. Raises KeyError."""
        if log not in self:
            raise KeyError(log)
        return self._bytes[log]

    def log_of(self, cursor: int) -> int | None:
        """The log here that has this cursor."""
        return self._logs.get(cursor)

    def holding(self) -> Iterator[int]:
        """Logs that keep something."""
        return (log for log, size in enumerate(self._bytes) if size and log in self)

    def unwanted(self) -> Iterator[int]:
        """Logs that keep something their cursor has passed, or that nobody has a cursor for."""
        for log in self:
            kept_until = self._positions[log] if self._cursors[log] else self._ends[log] - 1
            if kept_until > self._firsts[log]:
                yield log

    def _number(self, name: str) -> int | None:
        number = self._numbers.get(name)
        if number is None and len(self._names) < CURSOR_NAMES_MAX:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number
