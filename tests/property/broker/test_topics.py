"""Topic filters: the tree agrees with single matching, and relations between filters hold for sampled names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.model.topics import FilterTree, covers, is_wide, matches, overlaps, widen
from tests.support.numbered_filters import NumberedFilters

LEVEL = st.sampled_from(["a", "b", "", "$x"])
NAMES = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), min_size=0, max_size=4), st.booleans()).map(
    lambda pair: "/".join([*pair[0], *(["#"] if pair[1] or not pair[0] else [])])
)
WIDE = FILTERS | FILTERS.map(widen)
"""Filters, some with names that begin with ``$``, as wildcards of MQTT 3.1 may."""


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),  # [MQTT-4.7.1-2]
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/uptime", False),  # [MQTT-4.7.2-1]
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$#", "$SYS/uptime", True),  # possible meaning of # in MQTT 3.1
        ("$#", "plain/name", True),
        ("$+/monitor/Clients", "$SYS/monitor/Clients", True),
        ("$+/monitor/Clients", "any/monitor/Clients", True),
        ("$+/monitor", "$SYS/monitor/Clients", False),
        ("ACCOUNTS", "Accounts", False),  # case sensitive (section 4.7.3)
    ],
)
def test_matching_follows_the_standard(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(st.lists(st.tuples(WIDE, st.integers(0, 3)), max_size=20), st.lists(NAMES, max_size=10), st.data())
@settings(max_examples=200, deadline=None)
def test_tree_finds_the_same_as_single_matching(
    entries: list[tuple[str, int]], names: list[str], data: st.DataObject
) -> None:
    tree: FilterTree[int] = FilterTree()
    for pattern, value in entries:
        tree.add(pattern, value)
    gone = data.draw(st.lists(st.sampled_from(entries), max_size=5)) if entries else []
    for pattern, value in gone:
        tree.remove(pattern, value)
    left = {entry for entry in entries if entry not in gone}
    assert len(tree) == len(left)
    for name in names:
        found = tree.match(name)
        assert len(found) == len(set(found))
        assert set(found) == {value for pattern, value in left if matches(pattern, name)}


@given(st.lists(WIDE, max_size=12), NAMES, st.lists(LEVEL, min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_levels_after_the_deciding_ones_do_not_matter(patterns: list[str], name: str, more: list[str]) -> None:
    tree: FilterTree[int] = FilterTree()
    table = NumberedFilters(patterns)
    for value, pattern in enumerate(patterns):
        tree.add(pattern, value)
    levels = name.split("/")
    for found in (tree, table):
        count = found.deciding_levels(name)
        assert 1 <= count <= len(levels)
        if count < len(levels):
            assert set(found.match("/".join([*levels[:count], *more]))) == set(found.match(name))
    assert table.deciding_levels(name) == tree.deciding_levels(name)


@given(WIDE, WIDE, NAMES)
@settings(max_examples=500, deadline=None)
def test_covers_and_overlaps_agree_with_names(a: str, b: str, name: str) -> None:
    if name.startswith("$"):
        return
    if covers(a, b) and matches(b, name):
        assert matches(a, name)
    if matches(a, name) and matches(b, name):
        assert overlaps(a, b)
    assert overlaps(a, b) == overlaps(b, a)


@given(FILTERS, NAMES)
@settings(max_examples=300, deadline=None)
def test_widened_filter_matches_the_same_and_names_with_dollar(pattern: str, name: str) -> None:
    wide = widen(pattern)
    assert is_wide(wide) is pattern.startswith(("+", "#"))
    plain = name.replace("$", "")
    assert matches(wide, plain) is matches(pattern, plain)
    if is_wide(wide):
        assert matches(wide, name) is matches(pattern, "n" + name)
