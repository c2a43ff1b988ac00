"""The most specific matching rule governs a name, for every way to look it up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.broker.model.addresses import DEFAULT_RULE, AddressRule, AddressTable, AddressType
from edge.broker.model.topics import matches

levels = st.sampled_from(("", "a", "b", "$a", "$"))
names = st.lists(levels, min_size=1, max_size=3).map("/".join)
first_levels = st.one_of(levels, st.sampled_from(("+", "#", "$+", "$#")))


@st.composite
def patterns(draw: st.DrawFn) -> str:
    first = draw(first_levels)
    if first.endswith("#"):
        return first
    rest = draw(st.lists(st.one_of(levels, st.just("+")), max_size=2))
    return "/".join((first, *rest, *draw(st.sampled_from(((), ("#",))))))


@given(found=st.dictionaries(patterns(), st.sampled_from(AddressType), max_size=12), asked=st.lists(names, max_size=8))
def test_most_specific_matching_rule_is_found(found: dict[str, AddressType], asked: list[str]) -> None:
    table = AddressTable([AddressRule(pattern, kind) for pattern, kind in found.items()])
    for name in asked:
        expected = next((rule for rule in table.rules if matches(rule.pattern, name)), DEFAULT_RULE)
        assert table.rule(name) is expected
        assert table.rule(name) is expected, "remembered"


def test_new_name_is_not_compared_with_every_rule() -> None:
    """A new name is not compared with every rule.

    A plant that lists its addresses by name has thousands of rules, and each device adds names.
    """
    table = AddressTable([AddressRule(f"line{number}/+", AddressType.QUEUE) for number in range(5_000)])
    before = list(table.rules)
    table.rules.clear()  # remaining rules: those of the first level, and those of every name
    assert table.rule("line4711/temperature") is next(rule for rule in before if rule.pattern == "line4711/+")
    assert table.rule("elsewhere") is DEFAULT_RULE
