"""Filters as sorted numbers find what the tree of filters finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.broker.model.sorted_filters import SortedFilters
from edge.broker.model.topics import FilterTree

LEVEL = st.sampled_from(["", "a", "b", "a.b", "a0", "$a", "ä"])
NAME = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTER = st.builds(
    lambda first, levels, end: "/".join([first, *levels, *end]),
    st.sampled_from(["+", "$+", "a", "b", "$a", ""]),
    st.lists(st.one_of(LEVEL, st.just("+")), max_size=3),
    st.sampled_from([[], ["#"]]),
) | st.sampled_from(["#", "$#"])


@given(st.lists(FILTER, max_size=12), st.data(), st.lists(NAME, min_size=1, max_size=4))
def test_it_finds_what_the_tree_finds(filters: list[str], data: st.DataObject, names: list[str]) -> None:
    found, tree = SortedFilters(filters.__getitem__), FilterTree[int]()
    at_once = data.draw(st.integers(0, len(filters)))
    found.add_all(range(at_once))
    for number in range(len(filters)):
        if number >= at_once:
            found.add(number)
        tree.add(filters[number], number)
    gone = data.draw(st.sets(st.integers(0, len(filters) - 1))) if filters else set()
    for number in gone:
        found.remove(number)
        tree.remove(filters[number], number)
    assert len(found) == len(tree)
    for name in names:
        assert sorted(found.match(name)) == sorted(tree.match(name))
        assert len(set(found.match(name))) == len(found.match(name))
