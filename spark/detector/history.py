"""The last values of a series, as sums from which any window's mean and spread follow at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from spark.detector.limits import HISTORY_VALUES

_SIZE = HISTORY_VALUES + 1


class History:
    """The last `HISTORY_VALUES` values. Windows that reach further back than the series have what there is."""

    __slots__ = ("_at", "_origin", "_squares", "_sums", "count")

    def __init__(self) -> None:
        self.count = 0
        """Values so far."""
        self._sums = [0.0] * _SIZE
        self._squares = [0.0] * _SIZE
        self._at = 0
        self._origin = 0.0

    def add(self, value: float) -> None:
        """Take the next value."""
        if not self.count:
            # Differences from the first value: squares of large numbers would lose what is to be seen.
            self._origin = value
        value -= self._origin
        at = self._at
        upto, squares = self._sums[at] + value, self._squares[at] + value * value
        at += 1
        if at == _SIZE:
            at = 0
            self._rebase()
            upto, squares = self._sums[-1] + value, self._squares[-1] + value * value
        self._sums[at] = upto
        self._squares[at] = squares
        self._at = at
        self.count += 1

    def mean(self, size: int, back: int = 0) -> float:
        """The mean of `size` values, the newest of which came `back` values ago."""
        count = self.count
        at = self._at - back
        if size + back > count or size + back > HISTORY_VALUES:  # as a rule not, and this is asked most of all
            upto = max(1, count - back)
            size = min(size, upto, HISTORY_VALUES - back)
            at = self._at - (count - upto)
        # Negative places of a list count from its end: the ring needs no other rule.
        return (self._sums[at] - self._sums[at - size]) / size + self._origin

    def spread(self, size: int) -> float:
        """The standard deviation of the last `size` values."""
        size = min(size, self.count)
        at = self._at
        mean = (self._sums[at] - self._sums[at - size]) / size
        variance = (self._squares[at] - self._squares[at - size]) / size - mean * mean
        return float(variance**0.5) if variance > 0 else 0.0

    def _rebase(self) -> None:
        """Sums begin anew, once a ring: what was added and taken away for ever would not be the sum any more."""
        first, first_square = self._sums[0], self._squares[0]
        self._sums = [each - first for each in self._sums]
        self._squares = [each - first_square for each in self._squares]


class Median:
    """The median of the last `size` values, an odd number."""

    __slots__ = ("_ordered", "_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, value: float) -> float:
        """The median with `value` in it."""
        self._values.append(value)
        insort(self._ordered, value)
        if len(self._values) > self._size:
            del self._ordered[bisect_left(self._ordered, self._values.popleft())]
        return self._ordered[len(self._ordered) // 2]
