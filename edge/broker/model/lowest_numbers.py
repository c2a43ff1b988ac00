"""A column of numbers that knows its lowest."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

_CHUNK: Final = 512
"""Rows of which the lowest is known together: to find it anew takes 10 us, as does comparing those of 100 000."""


N = TypeVar("N", int, float)


class LowestNumbers(Generic[N]):
    """Numbers by row. Rows are appended, and stay."""

    __slots__ = ("_lowest", "_numbers")

    def __init__(self, typecode: str) -> None:
        """`typecode` as of `array.array`."""
        self._numbers: array[N] = array(typecode)
        self._lowest: list[N | None] = []
        """Of each `_CHUNK` of rows; None: to be looked for."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[N]:
        return iter(self._numbers)

    def __getitem__(self, row: int) -> N:
        return self._numbers[row]

    def append(self, number: N) -> None:
        """Another row."""
        if len(self._numbers) % _CHUNK == 0:
            self._lowest.append(None)
        self._numbers.append(number)
        self._lowest[-1] = None

    def __setitem__(self, row: int, number: N) -> None:
        before, self._numbers[row] = self._numbers[row], number
        lowest = self._lowest[row // _CHUNK]
        if lowest is not None:
            self._lowest[row // _CHUNK] = None if before == lowest else min(lowest, number)

    @property
    def lowest(self) -> N | None:
        """None when there are no rows."""
        return min((self._lowest_of(chunk) for chunk in range(len(self._lowest))), default=None)

    def up_to(self, highest: N) -> Iterator[int]:
        """Rows that are not above `highest`."""
        for chunk in range(len(self._lowest)):
            if self._lowest_of(chunk) <= highest:
                for row in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(self._numbers))):
                    if self._numbers[row] <= highest:
                        yield row

    def _lowest_of(self, chunk: int) -> N:
        lowest = self._lowest[chunk]
        if lowest is None:
            lowest = self._lowest[chunk] = min(self._numbers[chunk * _CHUNK : (chunk + 1) * _CHUNK])
        return lowest
