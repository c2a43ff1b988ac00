"""Tables of users: what each row would change, and what is wrong with it."""

from __future__ import annotations

import pytest

from edge.appliance.accounts.importing import ROWS_MAX, ImportPlan, plan_import
from edge.broker.security.credentials import BY_RESOURCE, new_user
from edge.broker.security.rights import parse_rights

KNOWN = {
    "old": new_user("old", parse_rights(["send:a"])),
    "fixed": new_user("fixed", parse_rights(["send:a"]), BY_RESOURCE),
}


def plan(text: str) -> ImportPlan:
    return plan_import(text, KNOWN)


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.error) for fault in plan(text).faults]


def test_rows_add_change_or_leave_users() -> None:
    found = plan(
        '\ufeffname,profile,allow\r\nnew,sensor,"recv:x recv:y"\r\n\r\nold,,send:b\r\nfixed,,send:a\r\nold2,viewer,\r\n'
    )
    assert [user.name for user in found.added] == ["new", "old2"]
    assert [(each.name, each.before, each.after) for each in found.changes] == [("old", ["send:a"], ["send:b"])]
    assert (found.unchanged, found.faults) == (1, [])


def test_row_without_rights_leaves_a_user() -> None:
    assert plan("name,allow\nold,\n").unchanged == 1
    assert faults("name,allow\nnew,\n") == [(2, "it has neither a profile nor rights")]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "the first row names the columns"),
        ("name\nx", 1, "the first row names the columns"),
        ("name,password\nx,y", 1, "the first row names the columns"),
        ("name,name\nx,y", 1, "the first row names the columns"),
        ("name,profile\na,wizard", 2, "profile is one of"),
        ("name,profile\na,sensor\na,sensor", 3, "a is in line 2 too"),
        ("name,allow\na,fly:x", 2, "fly"),
        ("name,allow\n\tx\x00,send:a", 2, ""),
        ("name,allow\nfixed,send:b", 2, "comes from a MessagingUser resource"),
        ("name,allow\na,send:b,c", 2, "it has 3 columns"),
        ('name,allow\n"a,send:b', 2, "not CSV"),
    ],
)
def test_wrong_rows_are_named(text: str, line: int, what: str) -> None:
    found = faults(text)
    assert len(found) == 1
    assert (found[0][0], what in found[0][1]) == (line, True), found


def test_rows_are_bounded() -> None:
    table = "name,profile\n" + "".join(f"u{number},sensor\n" for number in range(ROWS_MAX + 1))
    assert faults(table) == [(ROWS_MAX + 2, f"more than {ROWS_MAX} rows: divide the table")]
