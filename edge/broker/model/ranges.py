"""Set of integers stored as disjoint ascending ranges, for acknowledgements and outstanding deliveries.

In-order traffic touches one end only, where adding and removing is O(1). Elsewhere it is O(log n) plus a list move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

_NONE: Final[list[int]] = []
"""Shared by all empty sets and never changed: most sets are empty, and two lists take 112 bytes."""


class Ranges:
    """Disjoint, non-adjacent, ascending closed ranges of integers."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts = self._lasts = _NONE

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """Return the number of ranges (not of integers)."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    @property
    def count(self) -> int:
        """Number of integers in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def first(self) -> int:
        """Smallest integer; IndexError when empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """Largest integer; IndexError when empty."""
        return self._lasts[-1]

    def __contains__(self, value: int) -> bool:
        i = bisect_right(self._firsts, value) - 1
        return i >= 0 and value <= self._lasts[i]

    def following(self, value: int) -> int | None:
        """Return the smallest integer in the set that is `value` or more, or None."""
        i = bisect_right(self._lasts, value - 1)
        return max(value, self._firsts[i]) if i < len(self._firsts) else None

    def free_from(self, value: int) -> int:
        """Return the smallest integer not in the set that is `value` or more."""
        i = bisect_right(self._firsts, value) - 1
        return self._lasts[i] + 1 if i >= 0 and value <= self._lasts[i] else value

    def outside(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of ``first..last`` that are not in the set, ascending."""
        parts = []
        for low, high in self.within(first, last):
            if first < low:
                parts.append((first, low - 1))
            first = high + 1
        if first <= last:
            parts.append((first, last))
        return parts

    def add(self, first: int, last: int) -> None:
        """Add ``first..last`` and merge it with adjacent ranges."""
        firsts, lasts = self._firsts, self._lasts
        if not firsts:
            self._firsts, self._lasts = [first], [last]
            return
        if first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        if first >= firsts[-1]:
            lasts[-1] = max(lasts[-1], last)
            return
        low = bisect_right(lasts, first - 2)  # first range that ends at first - 1 or later
        high = bisect_right(firsts, last + 1)  # ranges before this one begin at last + 1 or earlier
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> None:
        """Remove ``first..last``. Integers that are not in the set are ignored."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_right(lasts, first - 1)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        left, right = firsts[low], lasts[high - 1]
        kept = [pair for pair in ((left, first - 1), (last + 1, right)) if pair[0] <= pair[1]]
        firsts[low:high] = [pair[0] for pair in kept]
        lasts[low:high] = [pair[1] for pair in kept]

    def take(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove ``first..last`` and return the parts that were in the set, ascending."""
        firsts, lasts = self._firsts, self._lasts
        if firsts and firsts[0] == first and last <= lasts[0]:  # in order: the usual case
            if last < lasts[0]:
                firsts[0] = last + 1
            else:
                del firsts[0], lasts[0]
            return [(first, last)]
        parts = self.within(first, last)
        self.remove(first, last)
        return parts

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of the set that lie in ``first..last``, ascending."""
        low = bisect_right(self._lasts, first - 1)
        high = bisect_right(self._firsts, last)
        return [(max(first, self._firsts[i]), min(last, self._lasts[i])) for i in range(low, high)]
