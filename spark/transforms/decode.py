"""A message body to its values: JSON and bare numbers. Plain Python, no Spark; payload formats are added here.

Numbers become `value`; texts become `text`; true and false become 1.0 and 0.0 with their word as `text`; null becomes
a value that is neither. A value's metric is its path in the document, joined by dots (`accel.x`, `cells.0`); the metric
of a body that is one bare value is empty here and named after its address later. What cannot be read gets a `reason`.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple, NoReturn

VALUES_MAX = 256
"""Values of one message; a body with more is more likely a document than a reading."""
DEPTH_MAX = 16
"""Levels of nesting. Deeper documents are seen from broken encoders only."""
BODY_BYTES_MAX = 256 * 1024
"""Bytes of a body that is read: 1 KiB for each of the values it may have. As objects it takes up to forty times as
much, and a gateway takes messages of 16 MiB."""
METRIC_CHARACTERS_MAX = 1_024
"""Characters of a value's path in its document: it is written out with each value."""

NOT_TEXT = "not UTF-8 text"
NOT_A_VALUE = "neither JSON nor a number"
NO_VALUES = "no values"
NOT_FINITE = "not a finite number"
NOT_UNICODE = "text with half a character"
TOO_LARGE = f"a body of more than {BODY_BYTES_MAX} bytes"
TOO_LONG = f"a name of more than {METRIC_CHARACTERS_MAX} characters"
TOO_DEEP = f"nested deeper than {DEPTH_MAX} levels"
TOO_MANY = f"more than {VALUES_MAX} values"
REASONS = (
    NOT_TEXT, NOT_A_VALUE, NO_VALUES, NOT_FINITE, NOT_UNICODE, TOO_LARGE, TOO_LONG, TOO_DEEP, TOO_MANY,
)  # fmt: skip


class Value(NamedTuple):
    """One value of a message, or one thing in it that could not be read (then `reason` says why)."""

    metric: str
    value: float | None = None
    text: str | None = None
    reason: str | None = None


class _TooManyError(Exception):
    """The document has more values than a message may."""


def values(body: bytes | None) -> list[Value]:
    """Everything `body` says, in document order; never empty: a body that says nothing gives one reason. None: one that
    was too large to be handed over."""
    if body is None or len(body) > BODY_BYTES_MAX:
        return [Value("", reason=TOO_LARGE)]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return [Value("", reason=NOT_TEXT)]
    try:
        document = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return [Value("", reason=TOO_DEEP)]
    except ValueError:
        return [_bare_number(text)]
    found: list[Value] = []
    try:
        _flatten("", document, 0, found)
    except _TooManyError:
        # All or nothing: which 256 of a thousand values were kept would be chance.
        return [Value("", reason=TOO_MANY)]
    return found or [Value("", reason=NO_VALUES)]


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are Python's own addition to JSON (RFC 8259 section 6 has no such numbers)."""
    raise ValueError(constant)


def _bare_number(text: str) -> Value:
    """Numbers that are not JSON's: `+21.5`, `.5`, `007`. Python's `1_000` and other scripts' digits are not numbers."""
    if "_" in text or not text.isascii():
        return Value("", reason=NOT_A_VALUE)
    try:
        return _number("", float(text))
    except ValueError:
        return Value("", reason=NOT_A_VALUE)


def _number(metric: str, number: float) -> Value:
    try:
        value = float(number)
    except OverflowError:  # an integer of more than 308 digits
        value = math.inf
    return Value(metric, value) if math.isfinite(value) else Value(metric, reason=NOT_FINITE)


def _is_unicode(text: str) -> bool:
    """JSON can spell half of a character outside the basic plane (RFC 8259 section 8.2); no column can hold it."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _flatten(metric: str, node: object, depth: int, found: list[Value]) -> None:
    if len(found) >= VALUES_MAX and not isinstance(node, dict | list):
        raise _TooManyError
    if len(metric) > METRIC_CHARACTERS_MAX or not _is_unicode(metric):
        found.append(Value("", reason=TOO_LONG if len(metric) > METRIC_CHARACTERS_MAX else NOT_UNICODE))
    elif isinstance(node, dict | list):
        if depth == DEPTH_MAX:
            found.append(Value(metric, reason=TOO_DEEP))
            return
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            _flatten(f"{metric}.{key}" if metric else str(key), child, depth + 1, found)
    elif isinstance(node, bool):
        found.append(Value(metric, float(node), "true" if node else "false"))
    elif isinstance(node, int | float):
        found.append(_number(metric, node))
    elif isinstance(node, str):
        found.append(Value(metric, text=node) if _is_unicode(node) else Value(metric, reason=NOT_UNICODE))
    else:
        found.append(Value(metric))
