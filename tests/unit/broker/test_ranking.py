"""The largest of numbers that change (`model.ranking`)."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from edge.broker.model.ranking import SPARE_ENTRIES, Ranking

ITEMS = st.integers(0, 5)


@given(st.lists(st.tuples(ITEMS, st.none() | st.integers(-3, 3), st.booleans())))
def test_largest_is_always_correct(steps: list[tuple[int, int | None, bool]]) -> None:
    numbers: dict[int, int] = {0: 0}
    ranking = Ranking[int](lambda item: numbers[item], numbers)
    for item, number, asked in steps:
        if number is None:
            numbers.pop(item, None)
            ranking.discard(item)
        else:
            numbers[item] = number
            ranking.changed(item)
        if asked:
            largest = ranking.largest()
            assert (largest is None) == (not numbers)
            assert largest is None or numbers[largest] == max(numbers.values())
    largest = ranking.largest()
    assert largest is None or numbers[largest] == max(numbers.values())


def test_frequent_changes_and_removals_take_no_memory() -> None:
    numbers = dict.fromkeys(range(100), 0)
    ranking = Ranking[int](lambda item: numbers[item], numbers)
    for number in range(10_000):
        numbers[number % 100] = number
        ranking.changed(number % 100)
        ranking.largest()
        assert len(ranking._entries) <= 2 * 100 + SPARE_ENTRIES
    for item in numbers:
        ranking.discard(item)
    assert len(ranking._entries) <= SPARE_ENTRIES
    assert ranking.largest() is None


def test_reading_costs_only_recent_changes() -> None:
    """A query costs only the items that changed: a scan of 20 000 items takes 0.5 ms."""
    numbers = dict.fromkeys(range(20_000), 0)
    ranking = Ranking[int](lambda item: numbers[item], numbers)
    ranking.largest()
    begin = time.thread_time()
    for number in range(1, 1_001):
        numbers[number] = number
        ranking.changed(number)
        assert ranking.largest() == number
    assert time.thread_time() - begin < 0.1
