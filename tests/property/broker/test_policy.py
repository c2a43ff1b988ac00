"""The policy agrees with a naive model on every possible address."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.model.authorization import AccessRule, Grant, Operation
from edge.broker.model.topics import matches

LEVELS = ("a", "b", "$x")
NAMES = ["/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=depth)]
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.sampled_from([*LEVELS, "+", "%u"]), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)
RULES = st.lists(
    st.builds(
        AccessRule,
        st.lists(FILTERS, min_size=1, max_size=2).map(tuple),
        st.frozensets(st.sampled_from(Operation), min_size=1),
    ),
    max_size=4,
)


def model(rules: list[AccessRule], operation: Operation, name: str) -> bool:
    return any(
        operation in rule.operations and matches(pattern.replace("%u", "a"), name)
        for rule in rules
        for pattern in rule.addresses
    )


@settings(max_examples=150, deadline=None)
@given(RULES)
def test_rights_of_names_match_the_model(rules: list[AccessRule]) -> None:
    grant = Grant("a", "c", rules)
    for name in [*NAMES, *NAMES]:  # again, now cached
        assert grant.may_send(name) is model(rules, Operation.SEND, name)
        assert grant.may(Operation.MANAGE, name) is model(rules, Operation.MANAGE, name)


@settings(max_examples=150, deadline=None)
@given(RULES, FILTERS.filter(lambda pattern: "%" not in pattern))
def test_allowed_filter_matches_only_allowed_names(rules: list[AccessRule], pattern: str) -> None:
    grant = Grant("a", "c", rules)
    if grant.may_receive(pattern):
        for name in NAMES:
            assert not matches(pattern, name) or model(rules, Operation.RECV, name)


@settings(max_examples=100, deadline=None)
@given(RULES, st.text("ab+#/%uc$", min_size=0, max_size=4))
def test_user_name_does_not_reach_beyond_one_level(rules: list[AccessRule], user: str) -> None:
    """The name of a user never gives it more rights than a rule with + in place of the placeholder."""
    grant = Grant(user, user, rules)
    widest = [AccessRule(tuple(p.replace("%u", "+") for p in rule.addresses), rule.operations) for rule in rules]
    for name in NAMES:
        if grant.may_send(name) and not name.startswith("$"):
            assert model(widest, Operation.SEND, name)
