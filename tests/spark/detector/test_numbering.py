"""Counters of readings are distinguished from measurements."""

from __future__ import annotations

import random

import pytest

from spark.detector.limits import NUMBERING_FALL_EACH, NUMBERING_STEPS
from spark.detector.numbering import Numbering, is_numbering_name
from spark.detector.state import dumps, loads


def numbers(values: list[float]) -> list[bool]:
    """Return the decision after each value."""
    numbering = Numbering()
    return [numbering.add(value) for value in values]


@pytest.mark.parametrize(
    ("metric", "named"), [("seq", True), ("env.ts", True), ("ts.env", False), ("temperature", False), ("seqs", False)]
)
def test_the_last_name_counts(metric: str, named: bool) -> None:
    assert is_numbering_name(metric) is named


@pytest.mark.parametrize(
    "values",
    [
        [float(n) for n in range(500)],
        [float(n % 256) for n in range(2_000)],
        [1.7e9 + 0.3 * n for n in range(500)],
        [float(n // 100) for n in range(500)],
        [7.0] * 500,
    ],
    ids=["counter", "byte", "clock", "boots", "constant"],
)
def test_what_goes_up_or_starts_over_numbers_readings(values: list[float]) -> None:
    assert all(numbers(values))


def test_how_long_something_took_is_to_be_judged() -> None:
    source = random.Random(5)
    said = numbers([source.gauss(20, 3) for _ in range(100)])
    assert said == [True] * NUMBERING_STEPS + [False] * (100 - NUMBERING_STEPS)


def test_one_fall_in_so_many_steps_and_one_more() -> None:
    steps = 2 * NUMBERING_FALL_EACH
    values = [float(n) for n in range(steps - 2)]
    assert numbers([*values, 0.0, 1.0, 0.0])[-1]
    assert not numbers([*values, 1.0, 0.5, 0.0])[-1]


def test_it_goes_on_from_its_bytes() -> None:
    one = Numbering()
    for value in range(40):
        assert one.add(value)
    other = loads(dumps(one))
    assert isinstance(other, Numbering)
    assert [one.add(value) for value in (3, 2, 1)] == [other.add(value) for value in (3, 2, 1)] == [True, False, False]
