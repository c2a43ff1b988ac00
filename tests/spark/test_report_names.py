"""Gateway names: the name on a page also selects the page of that gateway."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.report import names

_GATEWAYS = st.tuples(st.sampled_from(["default", "a", "b-c"]), st.text("ab/-", min_size=1, max_size=6))


@given(st.sets(_GATEWAYS, min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_each_gateway_has_a_name_of_its_own(known: set[tuple[str, str]]) -> None:
    shown = {names.short_name(gateway) for gateway in known}
    assert len(shown) == len(known)
    for gateway in known:
        assert names.find_gateway(names.full_name(gateway), known) == gateway
        if [name for _, name in known].count(gateway[1]) == 1:
            assert names.find_gateway(names.short_name(gateway), known) == gateway


def test_a_whole_name_wins_over_one_that_looks_so() -> None:
    known = {("a", "b"), ("default", "a/b")}
    assert names.find_gateway("a/b", known) == ("a", "b")
    assert names.short_name(("default", "a/b")) == "default/a/b"
    assert names.find_gateway("default/a/b", known) == ("default", "a/b")
    assert names.find_gateway("a/b", known - {("a", "b")}) == ("default", "a/b")


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({("default", "hall"), ("acme", "hall")}, r"several .* 'hall': choose one of acme/hall and default/hall$"),
        ({(f"t{n:02}", "hall") for n in range(12)}, r"t00/hall, .*, t09/hall and 2 more$"),
        ({("default", "hall1"), ("acme", "pier")}, r"no gateway named 'hall' .*; did you mean hall1\?$"),
        ({("default", "pier"), ("acme", "dock")}, r"no gateway named 'hall' .*; there are acme/dock and pier$"),
        (set(), r"no gateway named 'hall' is known: run `waypost lake run` on this lake first$"),
    ],
)
def test_what_is_not_one_gateway_is_told_with_what_there_is(known: set[tuple[str, str]], says: str) -> None:
    with pytest.raises(names.NoGateway, match=says):
        names.find_gateway("hall", known)
