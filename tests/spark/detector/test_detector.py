"""The detector on series made for each rule, on hostile values, and its promise not to look ahead."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.detector.detector import REPORTED, Detector, Finding
from spark.detector.limits import QUIET_VALUES, VALUE_MAX, WARM_UP_VALUES
from spark.detector.measures import Moment

INTERVAL_S = 300.0
DAY = 288
"""Values a day."""
BEGIN_S = 1_700_000_000.0


def findings(values: list[float], interval_s: float = INTERVAL_S) -> list[Finding]:
    """What the detector says of `values`, one each `interval_s`."""
    detector = Detector()
    return [detector.add(BEGIN_S + i * interval_s, value) for i, value in enumerate(values)]


def reported(found: list[Finding], begin: int = 0, end: int | None = None) -> list[int]:
    """Positions of anomalies in a stretch."""
    return [i for i in range(begin, len(found) if end is None else end) if found[i].score >= REPORTED]


def daily(days: int, *, seed: int = 1, noise: float = 0.5) -> list[float]:
    """A temperature of 20 ± 5 that goes by the day."""
    randomness = random.Random(seed)
    return [20 + 5 * math.sin(2 * math.pi * i / DAY) + randomness.gauss(0, noise) for i in range(days * DAY)]


def spike(values: list[float], at: int) -> None:
    """One value far away."""
    values[at] += 40


def shift(values: list[float], at: int) -> None:
    """Another level from here on."""
    values[at:] = [value + 12 for value in values[at:]]


def flatline(values: list[float], at: int) -> None:
    """A sensor that hangs for half a day."""
    values[at : at + DAY // 2] = [values[at]] * (DAY // 2)


def dropout(values: list[float], at: int) -> None:
    """A sensor that says nothing but 0 for an hour."""
    values[at : at + 12] = [0.0] * 12


def storm(values: list[float], at: int) -> None:
    """Noise of ten times its size for six hours."""
    randomness = random.Random(3)
    values[at : at + 72] = [value + randomness.gauss(0, 5) for value in values[at : at + 72]]


def other_hour(values: list[float], at: int) -> None:
    """A day that runs against its clock, within the usual range."""
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


def test_it_does_not_look_ahead() -> None:
    values = daily(9)
    spike(values, 8 * DAY)
    whole = findings(values)
    assert findings(values[: 8 * DAY + 10]) == whole[: 8 * DAY + 10]


def test_the_state_does_not_grow_and_goes_on_from_a_copy() -> None:
    detector = Detector()
    sizes = []
    for i, value in enumerate(daily(60)):
        detector.add(BEGIN_S + i * INTERVAL_S, value)
        if i in (20 * DAY, 60 * DAY - 1):
            sizes.append(len(pickle.dumps(detector)))
    assert sizes[1] <= sizes[0] * 1.01
    assert sizes[1] < 256 * 1024
    copy = pickle.loads(pickle.dumps(detector))
    assert copy.add(BEGIN_S + 1e8, 33.0) == detector.add(BEGIN_S + 1e8, 33.0)


def test_a_value_too_large_to_learn_from_is_an_anomaly_and_leaves_no_trace() -> None:
    one, other = Detector(), Detector()
    for i, value in enumerate(daily(3)):
        one.add(BEGIN_S + i * INTERVAL_S, value)
        other.add(BEGIN_S + i * INTERVAL_S, value)
    assert one.add(BEGIN_S + 3 * 86_400, VALUE_MAX * 1.01).score == 1.0
    assert one.add(BEGIN_S + 3 * 86_400 + 1, 21.0) == other.add(BEGIN_S + 3 * 86_400 + 1, 21.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_reading_no_score(value: float) -> None:
    assert Detector().add(BEGIN_S, value) == Finding(0.0)


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
    detector = Detector()
    for time_s, value in rows:
        finding = detector.add(time_s, value)
        assert 0.0 <= finding.score <= 1.0


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 60.0, 3_600.0, 100_000.0])
def test_any_interval_has_its_spikes_seen(interval_s: float) -> None:
    randomness = random.Random(5)
    values = [randomness.gauss(0, 1) for _ in range(3_000)]
    values[2_900] = 40.0
    assert findings(values, interval_s)[2_900].score >= REPORTED


def test_each_family_says_as_many_amounts_as_it_counts() -> None:
    detector = Detector()
    for i, value in enumerate(daily(9)):
        detector.add(BEGIN_S + i * INTERVAL_S, value)
    moment = Moment(BEGIN_S + 9 * 86_400, 20.0, detector._history, detector._overall, detector._day)
    for family, _ in detector._families:
        assert len(family.measure(moment).amounts) == family.count
