"""Conditions on a JSON body: a strict subset of JSONPath's filter expressions (RFC 9535 section 2.3.5).

Example: ``$.temperature > 30 && ($.unit == "C" || !$['door open'])``. Paths of names and indexes are compared with
numbers, strings, ``true``, ``false`` and ``null`` by ``== != < <= > >=``. A path alone tests for existence. ``&& || !``
and parentheses combine conditions. There are no wildcards, slices, descendants or functions, so the work does not
depend on the content of a body. Comparisons follow the standard: for different types only ``!=`` is true, and a missing
path does not equal any value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from edge.broker.limits import (
    JSON_CONDITION_BODY_BYTES_MAX,
    JSON_CONDITION_LENGTH_MAX,
    JSON_CONDITION_TERMS_MAX,
    SELECTOR_DEPTH_MAX,
)

_SYMBOL: Final = (
    r"\s*(?:(?P<path>\$(?:\.[A-Za-z_\u0080-\uffff][\w\u0080-\uffff-]*|\[(?:-?\d{1,9}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\])*)"
    r"|(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>true|false|null)(?!\w)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!()]))"
)
"""Compiled (0.25 MiB) with the first condition, as few gateways have one."""
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(?:(-?\d+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))\]")
_COMPARISONS: Final = ("==", "!=", "<=", ">=", "<", ">")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_END: Final = ("end", "")

Node = Callable[[Any], bool]
Value = Callable[[Any], Any]


class _MissingValue:
    """Value of a path that does not exist."""


NOTHING: Final = _MissingValue()


class JsonConditionError(ValueError):
    """The condition is invalid. The message says where."""


class JsonCondition:
    """A parsed condition."""

    def __init__(self, text: str) -> None:
        """Parse a condition. Raises `JsonConditionError`."""
        self.text = text
        self._holds = _ConditionParser(text).whole()

    def holds(self, body: bytes) -> bool:
        """Return True if the body fulfils the condition; False also if it is not JSON, or too large."""
        if len(body) > JSON_CONDITION_BODY_BYTES_MAX:
            return False
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return self._holds(document)


class _ConditionParser:
    """Recursive descent; each method returns a function of the document."""

    def __init__(self, text: str) -> None:
        if len(text) > JSON_CONDITION_LENGTH_MAX:
            raise JsonConditionError(f"longer than {JSON_CONDITION_LENGTH_MAX} characters")
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._or()
        if self._peek() != _END:
            self._fail("&&, || or the end")
        return node

    def _or(self) -> Node:
        parts = [self._and()]
        while self._accept("||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else lambda document: any(part(document) for part in parts)

    def _and(self) -> Node:
        parts = [self._not()]
        while self._accept("&&"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda document: all(part(document) for part in parts)

    def _not(self) -> Node:
        if self._accept("!"):
            self._deeper()
            inner = self._not()
            self._depth -= 1
            return lambda document: not inner(document)
        if self._accept("("):
            self._deeper()
            inner = self._or()
            self._depth -= 1
            if not self._accept(")"):
                self._fail(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Node:
        kind, _ = self._peek()
        left = self._value()
        sign = next((sign for sign in _COMPARISONS if self._accept(sign)), None)
        if sign is not None:
            right = self._value()
            return lambda document: _compared(sign, left(document), right(document))
        if kind != "path":
            self._fail("a comparison")
        return lambda document: left(document) is not NOTHING

    def _value(self) -> Value:
        kind, text = self._peek()
        if kind in ("sign", "end"):
            self._fail("a path or a value")
        self._at += 1
        if kind == "path":
            return _path(text)
        if kind == "number":
            number = float(text) if any(sign in text for sign in ".eE") else int(text)
            return lambda _document: number
        if kind == "text":
            string = _string(text)
            return lambda _document: string
        word = _WORDS[text]
        return lambda _document: word

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH_MAX:
            raise JsonConditionError(f"nested deeper than {SELECTOR_DEPTH_MAX}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _accept(self, sign: str) -> bool:
        if self._peek() != ("sign", sign):
            return False
        self._at += 1
        return True

    def _fail(self, wanted: str) -> NoReturn:
        found = self._peek()[1] or "the end"
        raise JsonConditionError(f"term {self._at + 1}: {wanted} expected, found {found}")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at, end, symbol = 0, len(text.rstrip()), re.compile(_SYMBOL)
    while at < end:
        found = symbol.match(text, at)
        if found is None or found.lastgroup is None:
            rest = text[at:].lstrip()
            raise JsonConditionError(f"character {len(text) - len(rest) + 1}: invalid: {rest[:20]!r}")
        tokens.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
        if len(tokens) > JSON_CONDITION_TERMS_MAX:
            raise JsonConditionError(f"more than {JSON_CONDITION_TERMS_MAX} terms")
    return [*tokens, _END]


def _path(text: str) -> Value:
    steps: list[str | int] = []
    for found in _STEP.finditer(text, 1):
        name, index, quoted = found.groups()
        steps.append(name if name is not None else int(index) if index is not None else _string(quoted))

    def value(document: Any) -> Any:
        for step in steps:
            if isinstance(step, str):
                if not isinstance(document, dict) or step not in document:
                    return NOTHING
            elif not isinstance(document, list) or not -len(document) <= step < len(document):
                return NOTHING
            document = document[step]
        return document

    return value


def _string(quoted: str) -> str:
    """Return the text of a quoted string, with the escapes of JSON."""
    inner = quoted[1:-1]
    if quoted[0] == "'":
        inner = inner.replace("\\'", "'").replace('"', '\\"')
    try:
        return msgspec.json.decode(f'"{inner}"', type=str)
    except msgspec.DecodeError as error:
        raise JsonConditionError(f"{quoted} is not a valid string: {error}") from None


def _compared(sign: str, left: Any, right: Any) -> bool:
    if sign in ("==", "!="):
        return _equal(left, right) is (sign == "==")
    if not ((_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str))):
        return sign in ("<=", ">=") and _equal(left, right)
    ordered: dict[str, bool] = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
    return ordered[sign]


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
