"""Last values of a series, as sums that give the mean and spread of any window at once."""

from __future__ import annotations

import numpy as np

from spark.detector.limits import BLOCK_VALUES, HISTORY_VALUES
from spark.detector.running import Numbers, running_sums, sliding_windows


class SeriesHistory:
    """Last values before a block, and those of the block."""

    __slots__ = ("_kept", "_values", "count")

    def __init__(self, kept: int = HISTORY_VALUES) -> None:
        """Set how far windows may reach back."""
        self._kept = kept
        self.count = 0
        """Values so far."""
        self._values: Numbers = np.empty(0)

    def add(self, values: Numbers) -> Windows:
        """Add values that do not cross the end of a block; return the windows that end in each of them."""
        if self.count % BLOCK_VALUES == 0:
            # Here alone: sums begin with the same value then, wherever stretches of the series end.
            self._values = self._values[-self._kept :]
        self._values = np.concatenate((self._values, values))
        self.count += len(values)
        return Windows(self._values, len(values))


class Windows:
    """Windows that end in each of the last `rows` values. At the start of the series they are shorter."""

    def __init__(self, values: Numbers, rows: int) -> None:
        self._values = values
        self.rows = rows
        # Differences from the first value: squares of large numbers would lose what is to be seen.
        self._origin = float(values[0])
        self._sums = running_sums(0.0, values - self._origin)
        self._squares = running_sums(0.0, (values - self._origin) ** 2)

    def mean(self, size: int, back: int = 0) -> Numbers:
        """Return the means of `size` values; the newest of them is `back` values old."""
        size = min(size, HISTORY_VALUES - back)
        return self._mean(self._sums, size, back) + self._origin

    def spread(self, size: int) -> Numbers:
        """Return the standard deviations of the last `size` values."""
        mean = self._mean(self._sums, size, 0)
        return np.sqrt(np.maximum(0.0, self._mean(self._squares, size, 0) - mean * mean))

    def before(self, size: int) -> Numbers:
        """Return the `size` values before each, a row each; infinities of either sign replace missing ones."""
        absent = max(0, size - (len(self._values) - self.rows))
        filled = np.concatenate((np.resize((np.inf, -np.inf), size)[size - absent :], self._values[:-1]))
        return sliding_windows(filled, size)[-self.rows :]

    def _mean(self, sums: Numbers, size: int, back: int) -> Numbers:
        rows, first = self.rows, len(sums) - self.rows - back
        if first >= size:
            return np.asarray((sums[first : first + rows] - sums[first - size : first - size + rows]) / size)
        upto = np.maximum(1, np.arange(first, first + rows))
        sizes = np.minimum(size, upto)
        return np.asarray((sums[upto] - sums[upto - sizes]) / sizes)
