"""Roles of people at a hub."""

from __future__ import annotations

import pytest

from cloud.hub.roles import RIGHTS, UserRole, role_of, with_role
from edge.appliance.accounts.profiles import PROFILES
from edge.broker.security.rights import parse_rights


@pytest.mark.parametrize(
    ("allow", "wanted"),
    [
        (["view:#"], "viewer"),
        (["view:#", "manage:#"], "operator"),
        (["view,manage:#"], "operator"),
        (["manage:#"], "operator"),
        (["manage:#", "recv:plant/#"], "operator"),
        (["view:$fleet", "manage:$fleet"], "admin"),
        (["manage:$fleet"], "admin"),
        (["view:$fleet"], None),
        (["recv:#"], None),
        ([], None),
    ],
)
def test_highest_role_that_fits(allow: list[str], wanted: str | None) -> None:
    assert role_of(parse_rights(allow)) == wanted


@pytest.mark.parametrize("role", UserRole)
def test_role_gives_its_rights_once(role: UserRole) -> None:
    allow = with_role(role, ["recv:a", *RIGHTS[role]])
    assert allow == [*RIGHTS[role], "recv:a"]
    assert role_of(parse_rights(allow)) is role


def test_words_mean_the_same_at_a_gateway() -> None:
    for role in (UserRole.VIEWER, UserRole.OPERATOR):
        assert RIGHTS[role] == PROFILES[role.value]
