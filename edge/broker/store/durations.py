"""Durations of commits: a histogram that one thread fills and another reads."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

BOUNDS_S: Final = tuple(50e-6 * 2 ** (step / 2) for step in range(37))
"""Upper bounds of the buckets: from 50 µs (less than any medium takes) to 13 s (a failing card). With two buckets an
octave the error of a percentile is at most a fifth."""


class Histogram(NamedTuple):
    """Cumulative histogram. ``buckets`` has (upper bound in seconds, count up to it); longer durations count only in
    `total`."""

    total: int
    seconds: float
    """Sum of all durations."""
    buckets: list[tuple[float, int]]


class Durations:
    """Histogram without locks: only the writing thread fills it. A reader may miss the commit that just ends."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    def histogram(self) -> Histogram:
        sums = list(accumulate(self._counts))
        return Histogram(sums[-1], self._seconds, list(zip(BOUNDS_S, sums, strict=False)))
