"""Detector on series made for each rule and on hostile values; it never uses later values."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.detector.detector import REPORTED, Detector, DetectorFinding
from spark.detector.limits import BLOCK_VALUES, QUIET_VALUES, VALUE_MAX, WARM_UP_VALUES
from spark.detector.running import MeasureRecords, Numbers

INTERVAL_S = 300.0
DAY = 288
"""Values in a day."""
BEGIN_S = 1_700_000_000.0


def findings(values: list[float], interval_s: float = INTERVAL_S) -> list[DetectorFinding]:
    """Return the detector's findings for `values`, with one value each `interval_s`."""
    return judged(Detector(), [(BEGIN_S + i * interval_s, value) for i, value in enumerate(values)])


def judged(detector: Detector, rows: Sequence[tuple[float, float]]) -> list[DetectorFinding]:
    """Return the findings of `detector` for these times and values."""
    times_s, values = np.array(rows, dtype=float).reshape(-1, 2).T
    return list(detector.judge(times_s, values))


def reported(found: list[DetectorFinding], begin: int = 0, end: int | None = None) -> list[int]:
    """Return the positions of anomalies within a range."""
    return [i for i in range(begin, len(found) if end is None else end) if found[i].score >= REPORTED]


def daily(days: int, *, seed: int = 1, noise: float = 0.5) -> list[float]:
    """Return temperatures of 20 ± 5 with a daily cycle."""
    randomness = random.Random(seed)
    return [20 + 5 * math.sin(2 * math.pi * i / DAY) + randomness.gauss(0, noise) for i in range(days * DAY)]


def spike(values: list[float], at: int) -> None:
    """Make one value an outlier."""
    values[at] += 40


def shift(values: list[float], at: int) -> None:
    """Change the level from this position on."""
    values[at:] = [value + 12 for value in values[at:]]


def flatline(values: list[float], at: int) -> None:
    """Repeat one value for half a day, as a stuck sensor does."""
    values[at : at + DAY // 2] = [values[at]] * (DAY // 2)


def dropout(values: list[float], at: int) -> None:
    """Set the values to 0 for an hour."""
    values[at : at + 12] = [0.0] * 12


def storm(values: list[float], at: int) -> None:
    """Multiply the noise by ten for six hours."""
    randomness = random.Random(3)
    values[at : at + 72] = [value + randomness.gauss(0, 5) for value in values[at : at + 72]]


def other_hour(values: list[float], at: int) -> None:
    """Reverse the daily cycle of a day, within the usual range."""
    values[at : at + DAY // 2] = [40 - value for value in values[at : at + DAY // 2]]


@pytest.mark.parametrize(
    ("event", "rules"),
    [
        (spike, {"spike", "unusual value"}),
        (shift, {"level shift", "unusual value", "spike"}),
        (flatline, {"variability", "pattern", "season"}),
        (dropout, {"unusual value", "spike"}),
        (storm, {"variability", "spike", "unusual value", "season", "pattern"}),
        (other_hour, {"season", "level shift", "pattern", "spike", "variability"}),
    ],
)
def test_an_event_is_reported_soon_once_and_by_a_rule_that_fits(
    event: Callable[[list[float], int], None], rules: set[str]
) -> None:
    values = daily(14)
    at = 12 * DAY + DAY // 3
    event(values, at)
    found = findings(values)

    hits = reported(found, at, at + DAY // 2)
    assert hits, f"{event.__name__} was not seen"
    assert found[hits[0]].rule in rules
    assert len(hits) <= 4, "one event, many reports"
    before = reported(found, 7 * DAY, at)
    assert len(before) <= 3, f"false reports in five quiet days: {before}"


def test_it_says_what_it_expected() -> None:
    values = daily(10, noise=0.1)
    at = 9 * DAY
    values[at] = 60.0
    finding = findings(values)[at]
    assert finding.score > 0.9
    assert finding.expected == pytest.approx(20, abs=3)


def test_a_constant_series_is_no_anomaly_and_its_first_change_is_one() -> None:
    found = findings([45.0] * 2_000 + [45.5])
    assert not reported(found, 0, 2_000)
    assert found[2_000].score >= REPORTED


def test_nothing_is_reported_while_it_learns() -> None:
    values = [0.0] * (WARM_UP_VALUES - 1) + [1e6] + [0.0] * 10
    assert not reported(findings(values), 0, WARM_UP_VALUES)


def test_what_follows_a_report_stays_below_one_unless_it_is_much_stronger() -> None:
    values = daily(8, noise=0.1)
    at = 7 * DAY
    for i in range(20):
        values[at + i] += 30 + i * 0.5
    hits = reported(findings(values), at, at + QUIET_VALUES)
    assert hits[:1] == [at]
    assert len(hits) == 1


def cut(rows: list[tuple[float, float]], sizes: Sequence[int]) -> list[DetectorFinding]:
    """Return the findings of a detector that gets `rows` in parts of these sizes, over and over."""
    detector, found, size = Detector(), list[DetectorFinding](), itertools.cycle(sizes)
    while len(found) < len(rows):
        found += judged(detector, rows[len(found) : len(found) + next(size)])
    return found


@pytest.mark.parametrize("sizes", [[1], [7, 500, 1_000], [BLOCK_VALUES], [3 * BLOCK_VALUES + 1]])
def test_it_does_not_look_ahead_and_says_the_same_however_many_come_at_once(sizes: list[int]) -> None:
    values = daily(3)[: BLOCK_VALUES + DAY // 2]
    spike(values, -9)
    values[DAY] = math.nan
    values[2 * DAY] = 2 * VALUE_MAX
    rows = [(BEGIN_S + i * INTERVAL_S, value) for i, value in enumerate(values)]
    assert cut(rows, sizes) == judged(Detector(), rows)


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 700), min_size=2, max_size=8).filter(lambda sizes: sum(sizes) > 100 * len(sizes)),
    st.sampled_from([1.0, 300.0, 7_000.0]),
)
def test_any_stretches_of_any_series_have_the_same_findings(seed: int, sizes: list[int], interval_s: float) -> None:
    source = np.random.default_rng(seed)
    times_s = np.cumsum(source.exponential(interval_s, 1_400)) - 3 * 86_400 * (source.random(1_400) < 0.002)
    values = np.cumsum(source.standard_t(2, 1_400)) * 10.0 ** source.integers(-9, 9)
    rows = list(zip(times_s.tolist(), values.tolist(), strict=True))
    assert cut(rows, sizes) == judged(Detector(), rows)


def test_the_state_does_not_grow_and_goes_on_from_a_copy() -> None:
    detector = Detector()
    sizes = []
    rows = [(BEGIN_S + i * INTERVAL_S, value) for i, value in enumerate(daily(60))]
    for begin in range(0, 60 * DAY, 20 * DAY):
        judged(detector, rows[begin : begin + 20 * DAY])
        sizes.append(len(pickle.dumps(detector)))
    assert sizes[2] <= sizes[1] + 8 * 4 * BLOCK_VALUES, "but for the values of a block"
    assert max(sizes) < 96 * 1024
    copy = pickle.loads(pickle.dumps(detector))
    assert judged(copy, [(BEGIN_S + 1e8, 33.0)]) == judged(detector, [(BEGIN_S + 1e8, 33.0)])


@pytest.mark.parametrize("interval_s", [0.01, 1.0, 300.0, 86_400.0])
def test_the_state_is_bounded_at_any_pace(interval_s: float) -> None:
    detector = Detector()
    rows = [(BEGIN_S + i * interval_s, value) for i, value in enumerate(daily(60))]
    judged(detector, rows)
    assert len(pickle.dumps(detector)) < 160 * 1024


def test_a_value_too_large_to_learn_from_is_an_anomaly_and_leaves_no_trace() -> None:
    one, other = Detector(), Detector()
    rows = [(BEGIN_S + i * INTERVAL_S, value) for i, value in enumerate(daily(3))]
    assert judged(one, rows) == judged(other, rows)
    (finding,) = judged(one, [(BEGIN_S + 3 * 86_400, VALUE_MAX * 1.01)])
    assert (finding.score, finding.rule) == (1.0, "unusual value")
    assert finding.expected == pytest.approx(20, abs=1)
    assert judged(one, [(BEGIN_S + 3 * 86_400 + 1, 21.0)]) == judged(other, [(BEGIN_S + 3 * 86_400 + 1, 21.0)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_reading_no_score(value: float) -> None:
    assert judged(Detector(), [(BEGIN_S, value)]) == [DetectorFinding(0.0)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-1e12, 1e12),
            st.one_of(st.floats(), st.floats(-10, 10), st.sampled_from([0.0, 1e99, -1e99, 1e-300])),
        ),
        max_size=400,
    )
)
def test_scores_are_between_0_and_1_whatever_comes(rows: list[tuple[float, float]]) -> None:
    assert all(0.0 <= finding.score <= 1.0 for finding in judged(Detector(), rows))


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 60.0, 3_600.0, 100_000.0])
def test_any_interval_has_its_spikes_seen(interval_s: float) -> None:
    randomness = random.Random(5)
    values = [randomness.gauss(0, 1) for _ in range(3_000)]
    values[2_900] = 40.0
    assert findings(values, interval_s)[2_900].score >= REPORTED


def test_a_frequent_series_remembers_as_many_days_as_one_in_five_minutes() -> None:
    noise = np.random.default_rng(8).normal(0, 1, 40_000).tolist()
    slow, fast = (len(reported(findings(noise, interval_s))) for interval_s in (300.0, 1.0))
    assert fast * 2 < slow


def test_each_family_says_as_many_amounts_as_it_counts() -> None:
    said: list[tuple[int, int]] = []

    class Listening(MeasureRecords):
        """Count the recorded amounts."""

        def __init__(self, count: int) -> None:
            super().__init__(count)
            self._count = count

        def votes(self, amounts: Numbers, count: int, memory: int) -> Numbers:
            said.append((self._count, len(amounts)))
            return super().votes(amounts, count, memory)

    judged(Detector(Listening), [(BEGIN_S + i * INTERVAL_S, value) for i, value in enumerate(daily(9))])
    assert all(count == amounts for count, amounts in said)
    assert len(set(said)) >= 4
