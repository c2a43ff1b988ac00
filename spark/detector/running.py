"""What goes on from stretch to stretch as one number a measure: totals, fading means, records.

A series comes in stretches of any length, none of which crosses the end of a block of `BLOCK_VALUES`. What is said of
a value must not depend on where stretches end, down to the last bit. So sums are added up in the order of the values,
and powers are those of the place in the block.
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
    """How many values of its block there are among so many values of a series; as many as it has, at its end."""
    return (count - 1) % BLOCK_VALUES + 1 if count else 0


class RunningMean:
    """The mean of all that was added, after each value."""

    __slots__ = ("_origin", "_total")

    def __init__(self) -> None:
        self._origin: float | None = None
        self._total = 0.0

    def add(self, values: Numbers, count: int) -> Numbers:
        """`count`: values of the series, these included."""
        if self._origin is None:
            # Differences from the first value: sums of large numbers would lose what is to be seen.
            self._origin = float(values[0])
        totals = running_sums(self._total, values - self._origin)[1:]
        self._total = float(totals[-1])
        return totals / np.arange(count - len(values) + 1, count + 1) + self._origin


class FadingMean:
    """The mean of all until there are `FADING_BLOCKS` blocks; from then on what came earlier counts less and less."""

    _VALUES: Final = FADING_BLOCKS * BLOCK_VALUES
    _SHARE: Final[Numbers] = (1 - 1 / _VALUES) ** _PLACES
    """Of an earlier mean in that of so many values later."""

    __slots__ = ("_all", "_scaled")

    def __init__(self) -> None:
        self._all = RunningMean()
        self._scaled = 0.0
        """The mean as it would be at the begin of the block, had nothing faded since."""

    def add(self, values: Numbers, count: int) -> Numbers:
        """The means before each of `values`; before the first of all it is that itself."""
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
    """The highest amount of each measure so far, which fades."""

    __slots__ = ("_highest",)

    def __init__(self, measures: int) -> None:
        self._highest = np.zeros((measures, 1))
        """As it would be at the begin of the block, had nothing faded since."""

    def votes(self, amounts: Numbers, count: int, memory: int) -> Numbers:
        """How clearly each amount exceeds its record: 0 when it does not, 1 from `MARGIN` on, 2 from twice the record
        on. It is the record then.

        `amounts`: a row for each measure, a column for each value; `count`: values of the series, these included;
        `memory`: values after which a record counts half, which may change where a block begins.
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
    """Of amounts that exceed their records."""
    with np.errstate(divide="ignore", over="ignore"):
        times = amounts / records
        votes = np.minimum((times - 1) / MARGIN, 1.0) + np.minimum(np.log2(times), 1.0)
    return np.where(records > 0, votes, 1.0)


def sum_rows(rows: Numbers) -> Numbers:
    """The sum of some rows, column by column: in their order, whatever the shape."""
    return reduce(np.add, rows)


def median(values: Numbers) -> float:
    """The median of values, of which there is one at least."""
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


def sliding_windows(values: Numbers, size: int, step: int = 1) -> Numbers:
    """A row for each window of `size` values that are `step` places apart; nothing is copied."""
    width = values.itemsize
    rows = len(values) - (size - 1) * step
    return np.ndarray((rows, size), values.dtype, values, strides=(width, step * width))


def running_sums(before: float, values: Numbers) -> Numbers:
    """The sum before the first of `values` and after each of them."""
    return np.cumsum(np.concatenate(((before,), values)))
