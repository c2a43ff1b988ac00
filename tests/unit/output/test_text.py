"""Names that peers choose, at each kind of output."""

from __future__ import annotations

import csv
import io
import json as standard_json

import pytest

from edge.output.document import json
from edge.output.text import cell, line, lines
from tests.support.names import HOSTILE


@pytest.mark.parametrize("name", HOSTILE)
def test_text_is_one_line_without_control_characters(name: str) -> None:
    assert line(name).isprintable()


def test_ordinary_names_are_unchanged() -> None:
    for name in ("plant/7/temp", "Wärme/Öfen", "温度/1", "emoji 🌡", "a [b] <c>"):
        assert line(name) == lines(name) == cell(name) == name


def test_only_own_newlines_remain() -> None:
    assert lines("a\nb\x1b[0m") == "a\nb\\x1b[0m"


@pytest.mark.parametrize("name", HOSTILE)
def test_json_is_equivalent_without_control_characters(name: str) -> None:
    name = name.encode("utf-8", "replace").decode()
    for indent in (0, 2):
        text = json({"name": name}, indent=indent)
        assert standard_json.loads(text) == {"name": name}
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("@SUM(1)", "'@SUM(1)"), ("+1+cmd|'/C calc'!A0", "'+1+cmd|'/C calc'!A0"),
        ("-2+3", "'-2+3"), ("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("-5.25", "-5.25"),
        ("+1e-7", "+1e-7"), ("a=1", "a=1"), ("", ""),
    ],
)  # fmt: skip
def test_no_cell_is_a_formula_and_numbers_stay_numbers(text: str, shown: str) -> None:
    assert cell(text) == shown
    out = io.StringIO(newline="")
    csv.writer(out).writerow([cell(text)])
    assert next(csv.reader(io.StringIO(out.getvalue(), newline=""))) in ([shown], [])
