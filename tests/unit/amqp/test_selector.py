"""Selectors: the grammar, the three values of SQL, and the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.limits import SELECTOR_DEPTH_MAX, SELECTOR_LENGTH_MAX, SELECTOR_TERMS_MAX
from edge.broker.message.selector import MessageSelector, SelectorError

VALUES: dict[str, Any] = {"a": 5, "b": "hello", "c": True, "d": 2.5, "raw": b"x", "JMSPriority": 7, "p.q": 1}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a = 5", True),
        ("a <> 5", False),
        ("a > 4 AND a < 6", True),
        ("a >= 5 and a <= 5", True),
        ("5 = a", True),
        ("a = '5'", False),
        ("NOT a = '5'", True),  # values of unlike types compare as false
        ("a <> '5'", False),
        ("NOT a > '5'", True),
        ("NOT unknown = '5'", False),
        ("b = 'hello' OR unknown = 1", True),
        ("b = 'hello' AND unknown = 1", False),
        ("NOT (unknown = 1)", False),
        ("unknown IS NULL AND a IS NOT NULL", True),
        ("c", True),
        ("NOT c", False),
        ("c = TRUE", True),
        ("c < TRUE", False),
        ("b < 'z'", False),
        ("raw = 'x'", False),
        ("a + 2 * 3 = 11", True),
        ("(a + 2) * 3 = 21", True),
        ("-a + +1 = -4", True),
        ("a - -1 = 6", True),
        ("a / 0 = 1", False),
        ("d * 2 = a", True),
        ("1.5e1 = 15 AND .5 < 1 AND 2. = 2", True),
        ("a / 2 = 2 AND -a / 2 = -2 AND a / -2 = -2 AND -a / -2 = 2", True),  # as Java divides
        ("a / 2.0 = 2.5 AND 5d / 2 = 2.5", True),
        ("a = 0x5 AND 0XFF = 255 AND 017 = 15L AND 0 = 0L", True),
        ("a BETWEEN 5 AND 6", True),
        ("a NOT BETWEEN 5 AND 6", False),
        ("a BETWEEN 1 AND 2 OR c", True),
        ("b IN ('x', 'hello')", True),
        ("b NOT IN ('x', 'hello')", False),
        ("unknown NOT IN ('x')", False),
        ("b LIKE 'h%o'", True),
        ("b LIKE 'h_llo'", True),
        ("b LIKE '%'", True),
        ("b LIKE 'h%x'", False),
        ("b NOT LIKE 'x%'", True),
        ("b LIKE 'hel!%%' ESCAPE '!'", False),
        ("'50%' LIKE '50!%' ESCAPE '!'", True),
        ("'it''s' = 'it''s'", True),
        ("JMSPriority > 5", True),
        ("p.q = 1", True),
        ("NOT NOT c", True),
    ],
)
def test_selector_evaluates_to_its_meaning(text: str, matches: bool) -> None:
    assert MessageSelector(text).matches(VALUES) is matches


@pytest.mark.parametrize(
    "text",
    [
        *("", "a =", "= 5", "a = 5 b", "(a = 5", "a = 5)", "a IN (5)", "a IN ()", "a LIKE b", "a LIKE 'x' ESCAPE 'ab'"),
        *("a BETWEEN 1", "'open", "a # b", "a IS 5", "AND", "a NOT", "5x = 1", "a = b c = d", "1.2.3 = 1", "NULL = 1"),
        *("08 = 8", "0x = 0", "0xg = 1", "a LIKE 'x!' ESCAPE '!'"),
    ],
)
def test_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        MessageSelector(text)


@pytest.mark.parametrize(
    "text_of",
    [
        lambda over: "'" + "x" * (SELECTOR_LENGTH_MAX - 5 + over) + "'= a",
        lambda over: "NOT " * (SELECTOR_TERMS_MAX - 2 + over) + "c",
        lambda over: "(" * (SELECTOR_DEPTH_MAX - 1 + over) + "c" + ")" * (SELECTOR_DEPTH_MAX - 1 + over),
    ],
)
def test_limits_are_enforced(text_of: Callable[[int], str]) -> None:
    MessageSelector(text_of(0))
    with pytest.raises(SelectorError, match=r"longer|more|deeper"):
        MessageSelector(text_of(1))


def test_like_does_not_explode() -> None:
    assert not MessageSelector(f"b LIKE '{'%a' * 1000}b'").matches({"b": "a" * 20_000})


@given(st.text(alphabet="ab'%_()+-*/<>=., 15NOTANDORLIKEINSBETWUC", max_size=60))
def test_any_text_is_refused_or_evaluated(text: str) -> None:
    try:
        selector = MessageSelector(text)
    except SelectorError:
        return
    assert selector.matches({"a": 1, "b": "x"}) in (True, False)
