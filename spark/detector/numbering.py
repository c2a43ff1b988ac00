"""Numbers that say which reading it is: a sequence number, a time, a count of starts. Nothing of them was measured.

They are told by name and by behaviour together. By name alone, a `time` that is how long something took would never be
judged; by behaviour alone, a meter that counts up steadily would not, and that it stops is what somebody wants to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark.detector.limits import NUMBERING_FALL_EACH, NUMBERING_STEPS

NAMES: Final = frozenset({"at", "boot", "seq", "sequence", "time", "timestamp", "ts"})
"""Last names of metrics that number readings, as a rule."""


def is_numbering_name(metric: str) -> bool:
    """Whether a metric, the path of a value in its document, is named as if it numbered readings."""
    return metric.rpartition(".")[2] in NAMES


class Numbering:
    """A series of such a name, for as long as it goes up. It may start over now and then: counters wrap."""

    __slots__ = ("_falls", "_last", "_steps")

    def __init__(self) -> None:
        self._last: float | None = None
        self._steps = 0
        self._falls = 0

    def take(self, values: Sequence[float]) -> int:
        """Take the next values, up to the first that is to be judged; how many do number readings."""
        return next((place for place, value in enumerate(values) if not self.add(value)), len(values))

    def add(self, value: float) -> bool:
        """Take the next value. False once the values do not number readings: then they are to be judged."""
        if self._last is not None:
            self._steps += 1
            self._falls += value < self._last
        self._last = value
        return self._steps < NUMBERING_STEPS or self._falls * NUMBERING_FALL_EACH <= self._steps
