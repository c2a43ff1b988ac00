"""LIKE against its plain definition, and its worst case."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.limits import SELECTOR_LENGTH_MAX, SELECTOR_SEARCHES_MAX, SELECTOR_TEXT_CHARACTERS_MAX
from edge.broker.message.like import LikePattern, PatternError
from edge.broker.message.selector import MessageSelector, SelectorError

WORST_S_MAX = 1.0
"""Time limit for one message; an idle machine takes 15 ms."""


def plain(pattern: str) -> re.Pattern[str]:
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(character, re.escape(character)) for character in pattern), re.DOTALL)


@given(st.text(alphabet="ab%_", max_size=12), st.text(alphabet="ab\n", max_size=12))
def test_like_matches_its_definition(pattern: str, text: str) -> None:
    assert LikePattern(pattern, "").matches(text) is (plain(pattern).fullmatch(text) is not None)


@given(st.text(alphabet="ab%_!", max_size=10), st.text(alphabet="ab%_!", max_size=10))
def test_escape_character_is_supported(pattern: str, text: str) -> None:
    try:
        like = LikePattern(pattern, "!")
    except PatternError:
        assert pattern.replace("!!", "").endswith("!")
        return
    expression = re.sub(
        r"!(.)|(%)|(_)|(.)", lambda m: re.escape(m[1] or m[4] or "") or (".*" if m[2] else "."), pattern
    )
    assert like.matches(text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_values_other_than_text_do_not_match() -> None:
    assert LikePattern("%", "").matches(None) is None
    assert LikePattern("%", "").matches(5) is False
    assert LikePattern("%", "").matches("a" * SELECTOR_TEXT_CHARACTERS_MAX) is True
    assert LikePattern("%", "").matches("a" * (SELECTOR_TEXT_CHARACTERS_MAX + 1)) is None


@pytest.mark.parametrize(
    "selector",
    [
        "b LIKE '" + "%a" * ((SELECTOR_LENGTH_MAX - 12) // 2) + "b'",
        " OR ".join(["b LIKE '%" + "a" * 15 + "b%'"] * 120),
        "b LIKE '" + ("%" + "a_" * 200 + "b") * SELECTOR_SEARCHES_MAX + "%'",
        " OR ".join(["b LIKE '%_" + "a_" * 40 + "b%'"] * SELECTOR_SEARCHES_MAX),
        "b LIKE '%" + "a" * (SELECTOR_LENGTH_MAX - 20) + "b%'",
    ],
)
def test_worst_case_is_linear_in_the_text(selector: str) -> None:
    parsed = MessageSelector(selector)
    begin = time.process_time()
    assert not parsed.matches({"b": "a" * SELECTOR_TEXT_CHARACTERS_MAX})
    assert time.process_time() - begin < WORST_S_MAX


def test_wildcard_patterns_are_bounded() -> None:
    MessageSelector("b LIKE '" + "%a_b" * SELECTOR_SEARCHES_MAX + "%'")
    with pytest.raises(SelectorError, match="pattern parts with '_'"):
        MessageSelector("b LIKE '" + "%a_b" * (SELECTOR_SEARCHES_MAX + 1) + "%'")


def test_numbers_are_read_in_linear_time() -> None:
    begin = time.process_time()
    with pytest.raises(SelectorError):
        MessageSelector("a = " + "1" * (SELECTOR_LENGTH_MAX - 5) + "x")
    assert time.process_time() - begin < WORST_S_MAX / 10
