"""Values of a result as text. Peers choose the names and bodies among them, so nothing in them may control a terminal.

The rules are those of `edge.output`, which this package does not import; a test compares them.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

import msgspec

_UNSAFE_IN_JSON: Final = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON allows raw, and that control a terminal or an editor."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that make a spreadsheet calculate."""
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
"""Decimals keep their digits; NaN and infinite numbers are null; bytes are base64; times are ISO 8601."""


def spell_line(text: str) -> str:
    """Return a text on one line, with unprintable characters escaped like in Python."""
    return text if text.isprintable() else "".join(map(_spell, text))


def _spell(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def guard_cell(text: str) -> str:
    """Return a text that a spreadsheet does not take for a formula: after a `'`, as spreadsheets mark text."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def json_text(value: Any) -> str:
    """Return a value as JSON on one line; characters that control a terminal are escaped."""
    return _UNSAFE_IN_JSON.sub(_escape, _ENCODER.encode(_with_text_keys(value)).decode())


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _with_text_keys(value: Any) -> Any:
    """Return a value with texts as the keys of its maps, as JSON requires."""
    if isinstance(value, dict):
        return {plain_text(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list | tuple) else value


def plain_text(value: Any) -> str:
    """Return a value as the text of a cell: empty for NULL, times in ISO 8601, bytes in base64, lists in JSON."""
    if value is None:
        return ""
    if type(value) in {str, int, float}:
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time | timedelta):
        return str(msgspec.to_builtins(value))
    return json_text(value) if isinstance(value, list | tuple | dict) else str(value)


def csv_lines(rows: Iterable[Sequence[Any]], *, terminal: bool) -> str:
    """Return rows in the format of RFC 4180. `terminal`: escape what controls a terminal."""
    out = io.StringIO(newline="")
    last = spell_line if terminal else str
    csv.writer(out).writerows([last(_csv_cell(value)) for value in row] for row in rows)
    return out.getvalue()


def _csv_cell(value: Any) -> str:
    return guard_cell(value) if isinstance(value, str) else plain_text(value)
