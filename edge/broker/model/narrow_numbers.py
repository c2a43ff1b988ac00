"""A column of numbers, nearly all of which fit 32 bits: 4 bytes each, and an entry of a dict for each that does not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

_WIDE: Final = (1 << 32) - 1
"""In place of a number that does not fit: it is in the dict."""


class NarrowNumbers:
    """Numbers by row. Rows are appended, and stay."""

    __slots__ = ("_narrow", "_wide")

    def __init__(self) -> None:
        self._narrow = array("I")
        self._wide: dict[int, int] = {}
        """By row."""

    def __len__(self) -> int:
        return len(self._narrow)

    def __iter__(self) -> Iterator[int]:
        if not self._wide:
            return iter(self._narrow)
        return (self._wide[row] if number == _WIDE else number for row, number in enumerate(self._narrow))

    def __getitem__(self, row: int) -> int:
        """Raises IndexError."""
        number = self._narrow[row]
        return number if number != _WIDE else self._wide[row]

    def __setitem__(self, row: int, number: int) -> None:
        if self._wide:
            self._wide.pop(row, None)
        if 0 <= number < _WIDE:
            self._narrow[row] = number
        else:
            self._narrow[row] = _WIDE
            self._wide[row] = number

    def extend(self, rows: int) -> None:
        """So many more, all 0."""
        self._narrow.frombytes(bytes(rows * self._narrow.itemsize))
