"""JSON (RFC 8259), numbers and plain text.

The fast reader takes what is well formed; the standard library's has the last word on the rest, as it keeps the good
values of a document in which one number is too large, or none (`NaN`, which RFC 8259 has not and Python writes).
A byte order mark is skipped, as the RFC's section 8.1 allows.
"""

from __future__ import annotations

import json
import math

import msgspec

from spark.decoding import document, reasons
from spark.decoding.value import Unreadable, Value

_read = msgspec.json.Decoder().decode


def parsed(body: bytes, reason: str = reasons.NOT_JSON) -> object:
    """The document. Raises `Unreadable`, with `reason` for text that is no JSON."""
    try:
        return _read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise Unreadable(reasons.TOO_DEEP) from None
    try:
        return json.loads(_text(body))
    except RecursionError:
        raise Unreadable(reasons.TOO_DEEP) from None
    except ValueError:
        raise Unreadable(reason) from None


def guessed(body: bytes) -> object:
    """What a body says of which nobody said what it is: JSON, or a number that is not JSON's (`+21.5`, `.5`, `007`).

    Raises `Unreadable`.
    """
    try:
        return parsed(body, reasons.NOT_A_VALUE)
    except Unreadable as unreadable:
        if str(unreadable) != reasons.NOT_A_VALUE:
            raise
        return _number(_text(body), reasons.NOT_A_VALUE)


def number(body: bytes) -> list[Value]:
    """A bare number. Raises `Unreadable`."""
    return [_finite(_number(_text(body), reasons.NOT_A_NUMBER))]


def text(body: bytes) -> list[Value]:
    """A number if it is one, else the text itself. Raises `Unreadable`."""
    said = _text(body)
    try:
        return [_finite(_number(said, reasons.NOT_A_NUMBER))]
    except Unreadable:
        if not said.strip():
            raise Unreadable(reasons.NO_VALUES) from None
        return [Value("", text=said)]


def _finite(said: float) -> Value:
    value = document.scalar("", said)
    if value.reason is not None:
        raise Unreadable(value.reason)
    return value


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable(reasons.NOT_TEXT) from None


def _number(said: str, reason: str) -> float:
    """Python's `1_000` and other scripts' digits are not numbers here."""
    if "_" in said or not said.isascii():
        raise Unreadable(reason)
    try:
        found = float(said)
    except ValueError:
        raise Unreadable(reason) from None
    if not math.isfinite(found):
        raise Unreadable(reasons.NOT_FINITE)
    return found
