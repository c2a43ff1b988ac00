"""Windows of a history and records of a family, against what their words say, computed the long way."""

from __future__ import annotations

import math
import random

import pytest

from spark.detector.history import History
from spark.detector.limits import HISTORY_VALUES, MARGIN, MEMORY_VALUES
from spark.detector.record import Records


@pytest.mark.parametrize("count", [1, 5, 100, HISTORY_VALUES, HISTORY_VALUES + 1, 3 * HISTORY_VALUES + 7])
def test_any_window_has_the_mean_and_spread_of_its_values(count: int) -> None:
    source = random.Random(count)
    values = [source.uniform(-9, 9) for _ in range(count)]
    history = History()
    for value in values:
        history.add(value)
    for size, back in ((1, 0), (3, 0), (36, 6), (72, 12), (864, 144), (HISTORY_VALUES, 0), (HISTORY_VALUES, 24)):
        # A window that would reach further back than there are values has those that there are.
        end = max(1, count - back)
        window = values[max(0, end - min(size, HISTORY_VALUES - back)) : end]
        mean = sum(window) / len(window)
        assert math.isclose(history.mean(size, back), mean, abs_tol=1e-9), (size, back)
        if not back:
            spread = math.sqrt(sum((value - mean) ** 2 for value in window) / len(window))
            assert math.isclose(history.spread(size), spread, abs_tol=1e-5), size


def test_each_measure_has_a_record_of_its_own_that_fades() -> None:
    records = Records(3)
    assert records.votes((2.0, 0.0, 4.0)) == 2.0, "the first amounts are records"
    assert records.votes((1.0, 0.0, 3.0)) == 0.0
    assert records.votes((2.0 * (1 + MARGIN), 0.0, 3.0)) == 1.0
    assert 0.0 < records.votes((1.0, 0.0, 4.0 * (1 + MARGIN / 2))) < 1.0
    for _ in range(MEMORY_VALUES):
        assert records.votes((0.0, 0.0, 0.0)) == 0.0
    assert records.votes((1.0 + 2 * MARGIN, 0.0, 0.0)) > 0.5, "half of it in so many values"
