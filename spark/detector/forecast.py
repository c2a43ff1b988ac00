"""The next value as a weighted sum of others, with weights the series teaches."""

from __future__ import annotations

from typing import Final

import numpy as np

from spark.detector.limits import BLOCK_VALUES
from spark.detector.running import Numbers, sum_rows


class Forecast:
    """How each value differs from the one before, foretold of how some others differ from that.

    The weights are those of least squares over the blocks so far, of which each counts less than the one after. They
    are drawn towards 0, by which a value is foretold to be as the one before: what has taught little is not believed.
    """

    _KEPT: Final = 0.9
    """What earlier blocks count, with each block: 3 400 values until it is a half."""
    _DRAWN: Final = 0.001
    """Added to each variance, of their mean."""

    __slots__ = ("_products", "_weights")

    def __init__(self, others: int) -> None:
        self._weights: Numbers = np.zeros((others, 1))
        self._products = np.zeros(((others + 1) ** 2, 1))
        """Sums of the products of all differences with each other."""

    def errors(self, differences: Numbers, others: Numbers, count: int) -> Numbers:
        """By how much the differences, one a value, are larger than foretold of `others`, of which each has a row.
        `count`: values of the series, these included."""
        foretold = sum_rows(self._weights * others)
        all_ = np.concatenate((others, differences[None]))
        products = (all_[:, None] * all_[None]).reshape(len(self._products), -1)
        # As a running sum, which adds in the same order whatever the shape.
        self._products = np.cumsum(np.concatenate((self._products, products), axis=1), axis=1)[:, -1:]
        if count % BLOCK_VALUES == 0:
            self._learn(len(all_))
        return np.asarray(differences - foretold)

    def _learn(self, size: int) -> None:
        products = self._products.reshape(size, size)
        variances, with_difference = products[:-1, :-1], products[:-1, -1:]
        usual = float(np.trace(variances)) / (size - 1)
        if usual > 0 and np.isfinite(usual):
            drawn = variances / usual + self._DRAWN * np.eye(size - 1)
            self._weights = np.linalg.solve(drawn, with_difference / usual).astype(np.float64)
        self._products = self._products * self._KEPT
