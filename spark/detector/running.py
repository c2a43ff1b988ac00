"""State that continues from chunk to chunk as one number per measure: totals, fading means, records.

A series arrives in chunks of any length that do not cross the end of a block of `BLOCK_VALUES`. The result must
not depend on the chunks, down to the last bit. So sums are added in the order of the values, and powers are those of
the place in the block.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark.detector.limits import BLOCK_VALUES, FADING_BLOCKS, MARGIN

Numbers = NDArray[np.float64]

_PLACES: Final[Numbers] = np.arange(BLOCK_VALUES + 1, dtype=np.float64)


def place_in_block(count: int) -> int:
    """Return the place in its block of the last of `count` values of a series; 0 without values."""
    return (count - 1) % BLOCK_VALUES + 1 if count else 0


class RunningMean:
    """Mean of all values, after each of them."""

    __slots__ = ("_origin", "_total")

    def __init__(self) -> None:
        self._origin: float | None = None
        self._total = 0.0

    def add(self, values: Numbers, count: int) -> Numbers:
        """Add values and return the means. `count`: values of the series, including these."""
        if self._origin is None:
            # Differences from the first value: sums of large numbers would lose what is to be seen.
            self._origin = float(values[0])
        totals = running_sums(self._total, values - self._origin)[1:]
        self._total = float(totals[-1])
        return totals / np.arange(count - len(values) + 1, count + 1) + self._origin


class FadingMean:
    """Mean of all values for the first `FADING_BLOCKS` blocks; then earlier values count less and less."""

    _VALUES: Final = FADING_BLOCKS * BLOCK_VALUES
    _SHARE: Final[Numbers] = (1 - 1 / _VALUES) ** _PLACES
    """Weight of an earlier mean, by the number of values since."""

    __slots__ = ("_all", "_scaled")

    def __init__(self) -> None:
        self._all = RunningMean()
        self._scaled = 0.0
        """The mean as it would be at the begin of the block, had nothing faded since."""

    def add(self, values: Numbers, count: int) -> Numbers:
        """Return the means before each of `values`; for the very first value, that value."""
        first = count - len(values)
        if first < self._VALUES:
            means = np.concatenate((values[:1] if not first else [self._scaled], self._all.add(values, count)))
            self._scaled = float(means[-1])
            return means[:-1]
        place = first % BLOCK_VALUES
        shares = self._SHARE[place : place + len(values) + 1]
        scaled = running_sums(self._scaled, values / self._VALUES / shares[1:])
        means = scaled * shares
        self._scaled = float(means[-1] if count % BLOCK_VALUES == 0 else scaled[-1])
        return means[:-1]


class MeasureRecords:
    """Highest amount of each measure so far, which fades."""

    __slots__ = ("_highest",)

    def __init__(self, measures: int) -> None:
        self._highest = np.zeros((measures, 1))
        """Highest amounts, scaled to the begin of the block."""

    def votes(self, amounts: Numbers, count: int, memory: int) -> Numbers:
        """Return how clearly each amount exceeds its record, which is then updated.

        0 if it does not, 1 from `MARGIN` on, 2 from twice the record on. `amounts`: a row for each measure, a column
        for each value; `count`: values of the series, including these; `memory`: values after which a record counts
        half; it may change where a block begins.
        """
        values = amounts.shape[1]
        place = place_in_block(count)
        shares = 0.5 ** (_PLACES[place - values + 1 : place + 1] / memory)
        highest = np.maximum.accumulate(np.concatenate((self._highest, amounts / shares), axis=1), axis=1)
        self._highest = highest[:, -1:] * (shares[-1] if place == BLOCK_VALUES else 1.0)
        records = highest[:, :-1] * shares
        votes = np.zeros(amounts.shape)
        broken = np.nonzero(amounts > records)  # few are, as a rule
        votes[broken] = _votes(amounts[broken], records[broken])
        return votes


def _votes(amounts: Numbers, records: Numbers) -> Numbers:
    """Return the votes of amounts that exceed their records."""
    with np.errstate(divide="ignore", over="ignore"):
        times = amounts / records
        votes = np.minimum((times - 1) / MARGIN, 1.0) + np.minimum(np.log2(times), 1.0)
    return np.where(records > 0, votes, 1.0)


def sum_rows(rows: Numbers) -> Numbers:
    """Return the sum of rows, column by column, always in the same order."""
    return reduce(np.add, rows)


def median(values: Numbers) -> float:
    """Return the median of at least one value."""
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


def sliding_windows(values: Numbers, size: int, step: int = 1) -> Numbers:
    """Return a row for each window of `size` values that are `step` places apart, without a copy."""
    width = values.itemsize
    rows = len(values) - (size - 1) * step
    return np.ndarray((rows, size), values.dtype, values, strides=(width, step * width))


def running_sums(before: float, values: Numbers) -> Numbers:
    """Return the sum before the first of `values` and after each of them."""
    return np.cumsum(np.concatenate(((before,), values)))
