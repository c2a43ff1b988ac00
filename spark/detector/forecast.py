"""Predict the next value as a weighted sum of others, with weights learned from the series."""

from __future__ import annotations

from typing import Final

import numpy as np

from spark.detector.limits import BLOCK_VALUES
from spark.detector.running import Numbers, sum_rows


class Forecast:
    """Predicts the difference of each value from the previous one, from the differences of some others.

    The weights are those of least squares over the blocks so far; later blocks count more. They are shrunk towards 0,
    which predicts the previous value, so that little data has little effect.
    """

    _KEPT: Final = 0.9
    """Factor of earlier blocks with each new one: 3 400 values until a half."""
    _DRAWN: Final = 0.001
    """Added to each variance, as a share of their mean."""

    __slots__ = ("_products", "_weights")

    def __init__(self, others: int) -> None:
        self._weights: Numbers = np.zeros((others, 1))
        self._products = np.zeros(((others + 1) ** 2, 1))
        """Sums of the products of all differences with each other."""

    def errors(self, differences: Numbers, others: Numbers, count: int) -> Numbers:
        """Return the errors of the prediction of `differences` from `others`, which have a row each.

        `count`: values of the series, including these.
        """
        foretold = sum_rows(self._weights * others)
        all_ = np.concatenate((others, differences[None]))
        products = (all_[:, None] * all_[None]).reshape(len(self._products), -1)
        # A running sum adds in the same order for every shape.
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
