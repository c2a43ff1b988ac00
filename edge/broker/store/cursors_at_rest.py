"""Cursors nobody uses, of logs that have many, as columns of numbers: some 40 bytes each and the name, where one that
is an object takes 450.

What is known of a cursor of which nothing is acknowledged out of order is its name and its position. Those of durable
subscriptions whose session is away are kept here until somebody asks for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from edge.broker.model.lowest_numbers import LowestNumbers
from edge.broker.model.narrow_numbers import NarrowNumbers
from edge.broker.model.numbered_names import NumberedNames
from edge.broker.store.sparse_numbers import SparseNumbers

_NOWHERE: Final = (1 << 63) - 1
"""Position of a row that is free."""
_ROWS_MIN: Final = 1024
"""With more rows than this, of which three quarters are free, the table is made anew."""


class RestingCursor(NamedTuple):
    """A cursor of a log."""

    cursor: int
    name: str
    position: int


class CursorsAtRest:
    """Those of one log, by number."""

    __slots__ = ("_cursors", "_free", "_names", "_positions", "_rows")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._names = NumberedNames()
        self._cursors = NarrowNumbers()
        self._cursors.extend(1)
        self._positions = LowestNumbers[int]("q")
        self._positions.append(_NOWHERE)
        self._free = array("i")
        self._rows = SparseNumbers()

    def __len__(self) -> int:
        return len(self._cursors) - 1 - len(self._free)

    def __iter__(self) -> Iterator[RestingCursor]:
        for row, cursor in enumerate(self._cursors):
            if cursor:
                yield RestingCursor(cursor, self._names[row], self._positions[row])

    def __contains__(self, cursor: int) -> bool:
        return self._rows.get(cursor) is not None

    def __getitem__(self, cursor: int) -> RestingCursor:
        """Raises KeyError."""
        row = self._row(cursor)
        return RestingCursor(cursor, self._names[row], self._positions[row])

    def number(self, name: str) -> int | None:
        """None when there is none of this name."""
        row = self._names.number(name)
        return None if row is None else self._cursors[row]

    def position(self, cursor: int) -> int:
        """Raises KeyError."""
        return self._positions[self._row(cursor)]

    @property
    def lowest(self) -> int | None:
        """The lowest position; None when there are none."""
        return self._positions.lowest if len(self) else None

    def put(self, cursor: int, name: str, position: int) -> None:
        """It is here from now on."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._cursors)
            self._cursors.extend(1)
            self._positions.append(_NOWHERE)
        self._cursors[row] = cursor
        self._names.add(row, name)
        self._rows.put(cursor, row)
        self._positions[row] = position

    def take(self, cursor: int) -> RestingCursor:
        """It is not here any more. Raises KeyError when it was not."""
        found = self[cursor]
        row = self._row(cursor)
        self._names.remove(row)
        self._rows.remove(cursor)
        self._cursors[row] = 0
        self._positions[row] = _NOWHERE
        self._free.append(row)
        if len(self._cursors) > _ROWS_MIN and 4 * len(self) < len(self._cursors):
            left = list(self)
            self._begin()
            for each in left:
                self.put(*each)
        return found

    def move(self, cursor: int, position: int) -> None:
        """It is further on. Raises KeyError."""
        self._positions[self._row(cursor)] = position

    def begin_at(self, first: int) -> None:
        """Nothing below is there any more."""
        for row in list(self._positions.up_to(first - 1)):
            self._positions[row] = first

    def _row(self, cursor: int) -> int:
        row = self._rows.get(cursor)
        if row is None:
            raise KeyError(cursor)
        return row
