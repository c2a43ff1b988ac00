"""Values of a document of nested objects and lists (JSON, CBOR and Protobuf all become one).

A value is named by its path (`air.humidity`, `cells.0`). An object with a time (`timestamps.FIELDS`, or the field that
a schema names) gives it to everything inside. In a list of objects that all have a time, the position is not part of
the name: `[{"ts": …, "t": 20}, {"ts": …, "t": 21}]` is two values of `t`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from spark.decoding import reasons, timestamps
from spark.decoding.limits import DEPTH_MAX, METRIC_CHARACTERS_MAX, VALUES_MAX
from spark.decoding.value import UnreadableBody, Value

_INFINITE: Final = math.inf
EXACT_MAX: Final = 2**53
"""Whole numbers up to this are exact doubles."""
_value: Final = partial(tuple.__new__, Value)
"""Make a value from all its fields, in a third of the constructor's time."""


def values(document: object, time_fields: Collection[str] = timestamps.FIELDS) -> list[Value]:
    """Return all values of a document, in order. Raises `UnreadableBody`: too deep, too many, or none at all.

    An invalid number leaves the other values as they are. Otherwise a document is read completely or not at all,
    because which of a thousand values were kept would be arbitrary.
    """
    found: list[Value] = []
    _DocumentWalk(found, time_fields).node("", document, 0, None)
    if not found:
        raise UnreadableBody(reasons.NO_VALUES)
    return found


class _DocumentWalk:
    __slots__ = ("_found", "_time_fields")

    def __init__(self, found: list[Value], time_fields: Collection[str]) -> None:
        self._found = found
        self._time_fields = time_fields

    def node(self, metric: str, node: Any, depth: int, time_us: int | None) -> None:
        if isinstance(node, dict | list):
            if depth == DEPTH_MAX:
                raise UnreadableBody(reasons.TOO_DEEP)
            if isinstance(node, dict):
                self._members(f"{metric}." if metric else "", node, depth + 1, time_us)
            else:
                self._items(metric, node, depth + 1, time_us)
            return
        if len(self._found) == VALUES_MAX:
            raise UnreadableBody(reasons.TOO_MANY)
        self._found.append(scalar(metric, node, time_us))

    def _members(self, prefix: str, node: Mapping[Any, Any], depth: int, time_us: int | None) -> None:
        own_us, field = self._time_of(node)
        if own_us is not None:
            time_us = own_us
        found = self._found
        characters = METRIC_CHARACTERS_MAX - len(prefix)
        for key, child in node.items():
            name = key if type(key) is str else str(key)
            if len(name) > characters or not name.isascii():
                check_name(prefix + name)
            if own_us is not None and name == field:
                continue
            # Fast path without a call for what most devices send: a number or a plain text in an object.
            kind = type(child)
            if len(found) >= VALUES_MAX:
                self.node(prefix + name, child, depth, time_us)
            elif kind is float and -_INFINITE < child < _INFINITE:
                found.append(_value((prefix + name, child, None, None, time_us, None, None, None, None, None)))
            elif kind is int and -EXACT_MAX <= child <= EXACT_MAX:
                found.append(_value((prefix + name, float(child), None, None, time_us, None, None, None, None, None)))
            elif kind is str and child.isascii():
                found.append(_value((prefix + name, None, child, None, time_us, None, None, None, None, None)))
            else:
                self.node(prefix + name, child, depth, time_us)

    def _items(self, metric: str, node: Sequence[Any], depth: int, time_us: int | None) -> None:
        if node and all(type(item) is dict and self._time_of(item)[0] is not None for item in node):
            for item in node:
                self.node(metric, item, depth, time_us)
            return
        prefix = f"{metric}." if metric else ""
        for index, item in enumerate(node):
            name = f"{prefix}{index}"
            if len(name) > METRIC_CHARACTERS_MAX:
                raise UnreadableBody(reasons.TOO_LONG)
            self.node(name, item, depth, time_us)

    def _time_of(self, node: Mapping[Any, Any]) -> tuple[int | None, str]:
        for field in self._time_fields:
            if field in node and (own_us := timestamps.field_time(field, node[field])) is not None:
                return own_us, field
        return None, ""


def check_name(name: str) -> None:
    """Raise `UnreadableBody` for a name that no column can hold."""
    if len(name) > METRIC_CHARACTERS_MAX:
        raise UnreadableBody(reasons.TOO_LONG)
    if not is_unicode(name):
        raise UnreadableBody(reasons.NOT_UNICODE)


def is_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogate, which JSON can spell (RFC 8259 section 8.2) and no column can
    hold.
    """
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def scalar(metric: str, raw: object, time_us: int | None = None, unit: str | None = None) -> Value:
    """Return a single value; one that no column can hold has a reason."""
    if raw is None:
        return Value(metric, None, None, None, time_us, unit)
    if isinstance(raw, bool):
        return Value(metric, float(raw), "true" if raw else "false", None, time_us, unit)
    if isinstance(raw, int | float):
        return _number(metric, raw, time_us, unit)
    if not isinstance(raw, str):
        return Value(metric, reason=reasons.NOT_A_SCALAR)
    if not is_unicode(raw):
        return Value(metric, reason=reasons.NOT_UNICODE)
    return Value(metric, None, raw, None, time_us, unit)


def _number(metric: str, raw: float, time_us: int | None, unit: str | None) -> Value:
    number = _double(raw)
    if not -_INFINITE < number < _INFINITE:
        return Value(metric, reason=reasons.NOT_FINITE)
    digits = str(raw) if isinstance(raw, int) and int(number) != raw else None
    return Value(metric, number, digits, None, time_us, unit)


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf
