"""JSON (RFC 8259), numbers and plain text.

A fast parser takes well-formed documents. The standard library decides about the rest: it keeps the valid values of a
document in which one number is too large, or not a number (`NaN` of Python, `nan`, `-nan` and `inf` of C's printf). A
byte order mark is skipped, as section 8.1 of the RFC allows, and so is the zero byte that ends a C string.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

import msgspec

from spark.decoding import document, reasons
from spark.decoding.value import UnreadableBody, Value

_read = msgspec.json.Decoder().decode

_NOT_FINITE: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|[+-]?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#(?:qnan|snan|ind|inf)\w*)(?![\w.])',
    re.IGNORECASE | re.DOTALL,
)
"""Strings, which stay as they are, and numbers that C spells in words (C17 section 7.21.6.1, and Microsoft's)."""


def parse(body: bytes, reason: str = reasons.NOT_JSON) -> object:
    """Return the document. Raises `UnreadableBody`, with `reason` for text that is not JSON."""
    try:
        return _read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise UnreadableBody(reasons.TOO_DEEP) from None
    try:
        return json.loads(_NOT_FINITE.sub(_spell_nan, _text(body)))
    except RecursionError:
        raise UnreadableBody(reasons.TOO_DEEP) from None
    except ValueError:
        raise UnreadableBody(reason) from None


def guess(body: bytes) -> object:
    """Parse a body of undeclared format: JSON, or a number that JSON does not allow (`+21.5`, `.5`, `007`).

    Raises `UnreadableBody`.
    """
    try:
        return parse(body, reasons.NOT_A_VALUE)
    except UnreadableBody as unreadable:
        if str(unreadable) != reasons.NOT_A_VALUE:
            raise
        return _number(_text(body), reasons.NOT_A_VALUE)


def number(body: bytes) -> list[Value]:
    """Return a bare number. Raises `UnreadableBody`."""
    return [_finite(_number(_text(body), reasons.NOT_A_NUMBER))]


def text(body: bytes) -> list[Value]:
    """Return a number if the body is one, else the text itself. Raises `UnreadableBody`."""
    content = _text(body)
    try:
        return [_finite(_number(content, reasons.NOT_A_NUMBER))]
    except UnreadableBody:
        if not content.strip():
            raise UnreadableBody(reasons.NO_VALUES) from None
        return [Value("", text=content)]


def _finite(content: float) -> Value:
    value = document.scalar("", content)
    if value.reason is not None:
        raise UnreadableBody(value.reason)
    return value


def _spell_nan(found: re.Match[str]) -> str:
    """Return a string as it is, and any other match as Python's JSON parser accepts it."""
    return found[0] if found[0].startswith('"') else "NaN"


def _text(body: bytes) -> str:
    """Return a body as text, without the zero bytes that end C strings. Raises `Unreadable`."""
    try:
        return body.rstrip(b"\0").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableBody(reasons.NOT_TEXT) from None


def _number(content: str, reason: str) -> float:
    """Parse a number. Python's `1_000` and digits of other scripts are not accepted."""
    if "_" in content or not content.isascii():
        raise UnreadableBody(reason)
    try:
        found = float(content)
    except ValueError:
        raise UnreadableBody(reason) from None
    if not math.isfinite(found):
        raise UnreadableBody(reasons.NOT_FINITE)
    return found
