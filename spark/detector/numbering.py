"""Numbers that only number readings: a sequence number, a time, a count of starts. They are not measurements.

Name and behaviour decide together. By name alone, a `time` that is a duration would never be judged; by behaviour
alone, a meter that counts up steadily would not, and its stop is of interest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark.detector.limits import NUMBERING_FALL_EACH, NUMBERING_STEPS

NAMES: Final = frozenset({"at", "boot", "seq", "sequence", "time", "timestamp", "ts"})
"""Last names of metrics that usually number readings."""


def is_numbering_name(metric: str) -> bool:
    """Return whether a metric, the path of a value, is named like a numbering."""
    return metric.rpartition(".")[2] in NAMES


class Numbering:
    """Series with such a name, as long as it goes up. It may start over now and then: counters wrap."""

    __slots__ = ("_falls", "_last", "_steps")

    def __init__(self) -> None:
        self._last: float | None = None
        self._steps = 0
        self._falls = 0

    def take(self, values: Sequence[float]) -> int:
        """Process the next values up to the first that has to be judged; return how many number readings."""
        return next((place for place, value in enumerate(values) if not self.add(value)), len(values))

    def add(self, value: float) -> bool:
        """Process the next value; return False once the values have to be judged."""
        if self._last is not None:
            self._steps += 1
            self._falls += value < self._last
        self._last = value
        return self._steps < NUMBERING_STEPS or self._falls * NUMBERING_FALL_EACH <= self._steps
