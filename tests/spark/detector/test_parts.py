"""Parts of a detector against direct computations of their definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from spark.detector.courses import Courses
from spark.detector.days import DayMeans, DaySpread, SeriesClock
from spark.detector.forecast import Forecast
from spark.detector.history import SeriesHistory
from spark.detector.limits import (
    BLOCK_VALUES,
    DAY_S,
    FADING_BLOCKS,
    HISTORY_VALUES,
    MARGIN,
    SLOT_MAX,
    SLOTS,
    SLOTS_WEEK,
)
from spark.detector.measures import Same
from spark.detector.running import FadingMean, MeasureRecords, Numbers

MEMORY = 10_000


def split_into_chunks(values: Numbers, size: int) -> Iterator[Numbers]:
    """Split `values` into parts of at most `size` that do not cross the end of a block."""
    begin = 0
    while begin < len(values):
        end = min(len(values), begin + size, (begin // BLOCK_VALUES + 1) * BLOCK_VALUES)
        yield values[begin:end]
        begin = end


@pytest.mark.parametrize("count", [1, 5, 100, BLOCK_VALUES, BLOCK_VALUES + 1, HISTORY_VALUES + 2 * BLOCK_VALUES + 7])
@pytest.mark.parametrize("chunk_size", [1, 90, BLOCK_VALUES])
def test_any_window_has_the_mean_and_spread_of_its_values(count: int, chunk_size: int) -> None:
    values = np.random.default_rng(count).uniform(-9, 9, count)
    history = SeriesHistory()
    for values_ in split_into_chunks(values, chunk_size):
        windows = history.add(values_)
    for size, back in ((1, 0), (3, 0), (36, 6), (72, 12), (864, 144), (HISTORY_VALUES, 0), (HISTORY_VALUES, 24)):
        # A window longer than the history covers the existing values.
        end = max(1, count - back)
        window = values[max(0, end - min(size, HISTORY_VALUES - back)) : end]
        assert windows.mean(size, back)[-1] == pytest.approx(window.mean(), abs=1e-9), (size, back)
        if not back:
            assert windows.spread(size)[-1] == pytest.approx(window.std(), abs=1e-5), size


@pytest.mark.parametrize("chunk_size", [1, 90, BLOCK_VALUES])
def test_the_values_before_each_and_infinities_where_there_are_none(chunk_size: int) -> None:
    values = np.arange(40.0)
    history = SeriesHistory()
    rows = [row.tolist() for each in split_into_chunks(values, chunk_size) for row in history.add(each).before(11)]
    assert rows[39] == list(range(28, 39))
    assert rows[3][-3:] == [0.0, 1.0, 2.0]
    assert [sorted(row)[5] for row in rows[1:5]] == [0.0, 1.0, 1.0, 2.0], "the upper median of an even number"


def test_each_measure_has_a_record_of_its_own_that_fades() -> None:
    records = MeasureRecords(3)
    counts = itertools.count(1)

    def votes(*amounts: float) -> float:
        return float(records.votes(np.array([amounts]).T, next(counts), MEMORY).sum())

    assert votes(2.0, 0.0, 4.0) == 2.0, "the first amounts are records"
    assert votes(1.0, 0.0, 3.0) == 0.0
    assert votes(2.0 * (1 + MARGIN), 0.0, 3.0) == pytest.approx(1 + math.log2(1 + MARGIN), abs=0.01)
    assert 0.0 < votes(1.0, 0.0, 4.0 * (1 + MARGIN / 2)) < 1.0
    for _ in range(MEMORY):
        assert votes(0.0, 0.0, 0.0) == 0.0
    assert votes(1.0 + 2 * MARGIN, 0.0, 0.0) > 0.5, "half of it in so many values"
    assert votes(9.0, 0.0, 0.0) == 2.0, "from twice the record on"


def test_a_mean_fades_as_if_each_value_had_been_taken_by_itself() -> None:
    values = np.random.default_rng(3).normal(5, 1, 4_000)
    fading = FadingMean()
    count, means = 0, []
    for each in split_into_chunks(values, 100):
        count += len(each)
        means.append(fading.add(each, count))
    expected = values[0]
    share = FADING_BLOCKS * BLOCK_VALUES
    for i, (value, mean) in enumerate(zip(values, np.concatenate(means), strict=True)):
        assert mean == pytest.approx(expected, rel=1e-9), i
        expected += (value - expected) / min(i + 1, share)


def test_courses_are_compared_with_all_that_are_kept_and_none_of_the_newest() -> None:
    points, stride, kept, newest = 4, 2, 30, 5
    values = np.random.default_rng(4).normal(0, 1, 2_000)
    history, courses = SeriesHistory(), Courses(points, stride, kept, newest)
    found = np.concatenate([courses.add(history.add(each), history.count) for each in split_into_chunks(values, 37)])
    means = np.convolve(values, [0.5, 0.5])[: len(values)]
    means[0] = values[0]
    lines = [means[end - 6 : end + 1 : 2] for end in range(6, len(values))]
    for i in (7, 50, 700, len(lines) - 1):
        others = lines[max(0, i - newest - kept) : i - newest]
        nearest = min(np.linalg.norm(lines[i] - other) for other in others)
        assert found[i + 6] == pytest.approx(nearest, abs=0.02), i


def test_a_clock_that_is_put_back_goes_on_at_the_same_hour_of_the_week() -> None:
    clock = SeriesClock()
    week, slot_s = SLOTS_WEEK, DAY_S / SLOTS
    times = np.array([5.0, 4.0, 900.0, 3.0, 4.0])
    slots = clock.slots(times * slot_s)
    assert slots.tolist() == [5, 5, 900, week + 3, week + 4]
    assert clock.slots(np.array([6.0]) * slot_s).tolist() == [week + 6]
    assert clock.slots(np.array([1e300, -1e300]))[1] >= SLOT_MAX


def test_the_same_time_of_other_days_is_that_of_the_nearest_slot() -> None:
    means = DayMeans()
    means.add(np.array([10, 10, 12]), np.array([1.0, 2.0, 3.0]), [])
    ((a, b, c, d),) = means.add(SLOTS + np.array([10, 11, 14, 15]), np.zeros(4), [1])
    assert (a, b, c) == (2.0, 2.0, 3.0), "of two as near the earlier one"
    assert math.isnan(d)


@pytest.mark.parametrize("chunk_size", [1, 90, BLOCK_VALUES])
def test_the_spread_of_a_day_is_that_of_its_values(chunk_size: int) -> None:
    source = np.random.default_rng(6)
    slots = np.cumsum(source.integers(0, 5, 1_500))
    values = source.normal(1e6, 1, 1_500)
    day = DaySpread()
    count, found = 0, []
    for each in split_into_chunks(values, chunk_size):
        count += len(each)
        found.append(day.add(slots[count - len(each) : count], each, count))
    for i in (0, 1, 400, 1_499):
        of_day = values[: i + 1][slots[: i + 1] > slots[i] - SLOTS]
        assert np.concatenate(found)[i] == pytest.approx(of_day.std(), abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, BLOCK_VALUES])
def test_how_often_a_value_has_been_the_same(chunk_size: int) -> None:
    same = Same()
    values = np.array([5.0, 5.0, 5.0, 6.0, 5.0, 5.0, 0.0])
    runs = [run for each in split_into_chunks(values, chunk_size) for run in same.add(each).tolist()]
    assert runs == [0, 1, 2, 0, 0, 1, 0]


def test_a_forecast_learns_what_a_value_depends_on() -> None:
    source = np.random.default_rng(7)
    others = source.normal(0, 3, (3, 4 * BLOCK_VALUES))
    differences = np.array([0.5, -0.2, 0.0]) @ others + source.normal(0, 0.1, 4 * BLOCK_VALUES)
    forecast = Forecast(3)
    errors = [
        forecast.errors(differences[end - BLOCK_VALUES : end], others[:, end - BLOCK_VALUES : end], end)
        for end in range(BLOCK_VALUES, len(differences) + 1, BLOCK_VALUES)
    ]
    assert errors[0].tolist() == differences[:BLOCK_VALUES].tolist(), "as the one before, while nothing is known"
    assert np.std(errors[1]) < 0.15
    assert np.std(errors[3]) == pytest.approx(0.1, rel=0.15)
