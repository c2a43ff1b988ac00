"""A column of values of which few are different: a byte or two each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

_WIDTHS: Final = {"B": 1 << 8, "H": 1 << 16, "I": 1 << 32}
"""How many different values there may be, by type code of `array.array`."""

V = TypeVar("V", bound=Hashable)


class RepeatedValues(Generic[V]):
    """Values by row. Rows are appended, and stay."""

    __slots__ = ("_free", "_numbers", "_of_rows", "_uses", "_values")

    def __init__(self, usual: V) -> None:
        """`usual`: the value of a row that has no other one."""
        self._of_rows: array[int] = array("B")
        """Numbers of values."""
        self._values: list[V] = [usual]
        self._numbers = {usual: 0}
        self._uses = [1]
        """Rows that have each value, and one more for the usual one, which stays."""
        self._free: list[int] = []
        """Numbers whose value no row has."""

    def __len__(self) -> int:
        return len(self._of_rows)

    def __iter__(self) -> Iterator[V]:
        return (self._values[number] for number in self._of_rows)

    def __getitem__(self, row: int) -> V:
        """Raises IndexError."""
        return self._values[self._of_rows[row]]

    def __setitem__(self, row: int, value: V) -> None:
        before, number = self._of_rows[row], self._number(value)
        self._uses[number] += 1
        self._of_rows[row] = number
        self._uses[before] -= 1
        if not self._uses[before]:
            del self._numbers[self._values[before]]
            self._values[before] = self._values[0]
            self._free.append(before)

    def extend(self, rows: int) -> None:
        """So many more, all with the usual value."""
        self._of_rows.frombytes(bytes(rows * self._of_rows.itemsize))
        self._uses[0] += rows

    def rows(self, value: V) -> Iterator[int]:
        """Those that have it."""
        number = self._numbers.get(value)
        return (row for row, its in enumerate(self._of_rows) if its == number)

    def _number(self, value: V) -> int:
        number = self._numbers.get(value)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._values[number] = value
            else:
                number = len(self._values)
                self._values.append(value)
                self._uses.append(0)
                if number >= _WIDTHS[self._of_rows.typecode]:
                    wider = next(code for code, most in _WIDTHS.items() if number < most)
                    self._of_rows = array(wider, self._of_rows)
            self._numbers[value] = number
        return number
