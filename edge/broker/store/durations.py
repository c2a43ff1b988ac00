"""How long commits take: a histogram that one thread fills and another reads."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

BOUNDS_S: Final = tuple(50e-6 * 2 ** (step / 2) for step in range(37))
"""Upper ends of the buckets: 50 µs (less than any medium takes) to 13 s (a card that is dying), two an octave, so that
a percentile read out of them is at most a fifth off."""


class Histogram(NamedTuple):
    """``buckets``: (upper end in seconds, how many took at most that long), cumulative; longer ones count only in
    `total`."""

    total: int
    seconds: float
    """All of them together."""
    buckets: list[tuple[float, int]]


class Durations:
    """Filled by the writing thread alone, so nothing is locked; a reader may miss the commit that just ends."""

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
