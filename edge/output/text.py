"""Escaping of texts of peers for logs, terminals and spreadsheets.

A client chooses its id, topics and reasons, and an operator reads them in a log, a terminal or a spreadsheet. A newline
would forge a log line, ESC controls a terminal, U+202E reverses the text direction, `=` starts a formula. Characters
that cannot be printed are shown as Python's escapes (`\\n`, `\\x1b`, `\\u202e`), so they stay visible without effect.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of formulas in spreadsheets (OWASP, CSV injection)."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def line(text: object) -> str:
    """Return `str(text)` as one line."""
    shown = str(text)
    return shown if shown.isprintable() else "".join(map(_spelled, shown))


def lines(text: object) -> str:
    """Return `str(text)` with all characters escaped that cannot be printed, except newlines."""
    shown = str(text)
    return shown if shown.isprintable() else "\n".join(map(line, shown.split("\n")))


def cell(text: str) -> str:
    """Return a cell of a CSV file, with a leading `'` if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def word(text: object) -> str:
    """Return `str(text)` quoted as one word of a shell command."""
    return shlex.quote(str(text))


def _spelled(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
