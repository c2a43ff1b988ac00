"""`Ranges` agrees with a plain set of integers."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.model.ranges import Ranges

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "take"]), SPANS), max_size=40)


@given(STEPS, SPANS)
@settings(max_examples=300, deadline=None)
def test_ranges_behave_like_a_set(steps: list[tuple[str, tuple[int, int]]], window: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for verb, (first, last) in steps:
        span = set(range(first, last + 1))
        if verb == "add":
            ranges.add(first, last)
            model |= span
        else:
            if verb == "remove":
                ranges.remove(first, last)
            else:
                taken = {value for low, high in ranges.take(first, last) for value in range(low, high + 1)}
                assert taken == model & span
            model -= span
    kept = list(ranges)
    assert {value for first, last in kept for value in range(first, last + 1)} == model
    assert all(first <= last for first, last in kept)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(kept)), "disjoint and not adjacent"
    assert ranges.count == len(model)
    assert bool(ranges) == bool(model)
    assert all((value in ranges) == (value in model) for value in range(80))
    inside = {value for first, last in ranges.within(*window) for value in range(first, last + 1)}
    assert inside == model & set(range(window[0], window[1] + 1))
    if model:
        assert ranges.first == min(model)
