"""What the measures of a family have shown at most so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark.detector.limits import MARGIN, MEMORY_VALUES

_FADING: Final[float] = 0.5 ** (1 / MEMORY_VALUES)


class Records:
    """The highest amount of each measure, which fades by half in `MEMORY_VALUES` values."""

    __slots__ = ("_highest",)

    def __init__(self, count: int) -> None:
        self._highest = [0.0] * count

    def votes(self, amounts: Sequence[float]) -> float:
        """How clearly the amounts exceed their records, together: each 0 when it does not, 1 from `MARGIN` on. Those
        that do are the records then."""
        records, votes = self._highest, 0.0
        for i, amount in enumerate(amounts):
            highest = records[i] * _FADING
            if amount <= highest:
                records[i] = highest
                continue
            records[i] = amount
            votes += 1.0 if highest == 0.0 else min(1.0, (amount / highest - 1) / MARGIN)
        return votes
