"""Amounts have the same format in every table and sentence."""

from __future__ import annotations

import pytest

from edge.output.amounts import counted, number, size, span, verb
from spark import amounts

NUMBERS = ((0, "0"), (999, "999"), (13_719, "13,719"), (1_000_000, "1,000,000"))


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_commands_and_report_format_numbers_alike(value: int, text: str) -> None:
    assert (number(value), amounts.count(value)) == (text, text)


@pytest.mark.parametrize(("count", "plural", "text"), [
    (0, "", "0 messages"), (1, "", "1 message"), (2, "", "2 messages"), (1, "messages", "1 message"),
    (13_719, "messages", "13,719 messages"),
])  # fmt: skip
def test_one_is_singular(count: int, plural: str, text: str) -> None:
    assert (counted(count, "message", plural), amounts.counted(count, "message", plural)) == (text, text)


def test_irregular_plural_is_used() -> None:
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")


def test_verb_agrees() -> None:
    assert (verb(1, "waits", "wait"), verb(0, "waits", "wait"), verb(2, "waits", "wait")) == ("waits", "wait", "wait")


def test_unknown_sizes_and_times_have_a_text() -> None:
    assert (size(None), span(None)) == ("-", "-")
    assert (size(1_500_000), span(90), span(3 * 86_400)) == ("1.5 MB", "90 s", "3 days")
