"""A table of filters finds the same filters as the tree of filters."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.limits import TOPIC_LEVELS_MAX
from edge.broker.model.topics import FilterTree
from tests.support.numbered_filters import NumberedFilters

LEVEL = st.sampled_from(["", "a", "b", "a.b", "a0", "$a", "ä"])
NAME = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTER = st.builds(
    lambda first, levels, end: "/".join([first, *levels, *end]),
    st.sampled_from(["+", "$+", "a", "b", "$a", ""]),
    st.lists(st.one_of(LEVEL, st.just("+")), max_size=3),
    st.sampled_from([[], ["#"]]),
) | st.sampled_from(["#", "$#"])


@given(st.lists(FILTER, max_size=12), st.data(), st.lists(NAME, min_size=1, max_size=4))
def test_table_matches_like_the_tree(filters: list[str], data: st.DataObject, names: list[str]) -> None:
    found, tree = NumberedFilters(filters), FilterTree[int]()
    for number, each in enumerate(filters):
        tree.add(each, number)
    gone = data.draw(st.sets(st.integers(0, len(filters) - 1))) if filters else set()
    for number in gone:
        found.execute("DELETE FROM f WHERE pattern = ? AND number = ?", (filters[number], number))
        tree.remove(filters[number], number)
    for name in names:
        assert sorted(found.match(name)) == sorted(tree.match(name))
        assert len(set(found.match(name))) == len(found.match(name))


@given(st.lists(FILTER, max_size=12), st.lists(NAME, min_size=1, max_size=4))
def test_deciding_levels_match_the_tree(filters: list[str], names: list[str]) -> None:
    found, tree = NumberedFilters(filters), FilterTree[int]()
    for number, each in enumerate(filters):
        tree.add(each, number)
    for name in names:
        assert found.deciding_levels(name) == tree.deciding_levels(name)


DEEP = "/".join(["a"] * (TOPIC_LEVELS_MAX - 1))
CROSSED = ["/".join(each) for each in itertools.product("a+", repeat=10)]
"""Ten levels, each `a` or `+`: the name matches both at every level."""


@pytest.mark.parametrize(
    ("filters", "name"),
    [
        ([f"{DEEP}/b"], f"{DEEP}/c"),
        ([f"{DEEP[:-2]}/+/b"], f"{DEEP}/c"),
        ([f"+/{DEEP[:-2]}/#", f"{DEEP}/b"], f"{DEEP}/c"),
        ([f"{each}/b" for each in CROSSED], "/".join("a" * 10 + "c")),
        (["/".join([*"+" * depth, "b"]) for depth in range(TOPIC_LEVELS_MAX)], f"{DEEP}/c"),
    ],
)
def test_adversarial_filters_are_fast(filters: list[str], name: str) -> None:
    """Match time does not double with each level: one filter of 128 levels once blocked the loop for ever."""
    found, tree = NumberedFilters(filters), FilterTree[int]()
    for number, each in enumerate(filters):
        tree.add(each, number)
    begin = time.thread_time()
    for by in (found, tree):
        by.match(name)
        by.deciding_levels(name)
        assert all(by.match(each.replace("+", "a").replace("#", "x")) for each in filters[:20])
    assert time.thread_time() - begin < 2.0, "some milliseconds; on a busy machine too"
