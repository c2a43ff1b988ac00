"""What a measure has shown at most so far."""

from __future__ import annotations

from typing import Final

from spark.detector.limits import MARGIN, MEMORY_VALUES

_FADING: Final[float] = 0.5 ** (1 / MEMORY_VALUES)


class Record:
    """The highest amount of one measure, which fades by half in `MEMORY_VALUES` values."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest = 0.0

    def vote(self, amount: float) -> float:
        """How clearly `amount` exceeds the record: 0 when it does not, 1 from `MARGIN` on. It is the record then."""
        highest = self._highest * _FADING
        if amount <= highest:
            self._highest = highest
            return 0.0
        self._highest = amount
        if highest == 0.0:
            return 1.0
        return min(1.0, (amount / highest - 1) / MARGIN)
