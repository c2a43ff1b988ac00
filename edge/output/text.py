"""Texts of peers, made safe for each kind of output: lines, terminals, spreadsheets.

A client chooses its id, its topics and its reasons, and an operator reads them in a log, a terminal or a spreadsheet. A
newline there forges a log line, ESC steers a terminal, U+202E turns the order of letters round, `=` begins a formula.
What cannot be printed is shown as Python spells it (`\\n`, `\\x1b`, `\\u202e`), so nothing vanishes and nothing acts.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that make a spreadsheet calculate (OWASP, CSV injection)."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def line(text: object) -> str:
    """`str(text)` within one line."""
    shown = str(text)
    return shown if shown.isprintable() else "".join(map(_spelled, shown))


def lines(text: object) -> str:
    """`str(text)` whose newlines are ours: only those stay."""
    shown = str(text)
    return shown if shown.isprintable() else "\n".join(map(line, shown.split("\n")))


def cell(text: str) -> str:
    """A cell of a CSV file that no spreadsheet takes for a formula: behind a `'`, as spreadsheets spell text."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def word(text: object) -> str:
    """`str(text)` as one word of a command that a person pastes into a shell."""
    return shlex.quote(str(text))


def _spelled(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
