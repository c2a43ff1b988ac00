"""Selectors: the SQL subset of JMS (Jakarta Messaging 3.1 section 3.8), as AMQP receivers send it in a filter.

A `MessageSelector` is parsed once into nested functions and evaluated for each message. It follows SQL's three-valued
logic: true, false and unknown (None). Only messages for which it is true are delivered.

The length of the text, the nesting and the number of terms are bounded, since a peer chooses them. LIKE reads its text
once, so no pattern takes exponential time. A name is an application property or one of the header fields that JMS
lists (JMSPriority, JMSMessageID, JMSCorrelationID, JMSType, JMSTimestamp, JMSDeliveryMode, JMSReplyTo).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from edge.broker.limits import SELECTOR_DEPTH_MAX, SELECTOR_LENGTH_MAX, SELECTOR_SEARCHES_MAX, SELECTOR_TERMS_MAX
from edge.broker.message.like import LikePattern, PatternError

_TOKEN: Final = re.compile(
    r"\s*(?:(?:(?P<integer>0[xX][0-9a-fA-F]++|\d++)[lL]?|(?P<number>(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?)[dDfF]?)"
    r"(?![\w.$])"
    r"|(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_$][\w$.]*)|(?P<sign><>|<=|>=|[=<>+\-*/(),]))"
)
_WORDS: Final = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
_END: Final = ("end", "")

Values = Mapping[str, Any]
Node = Callable[[Values], Any]


class SelectorError(ValueError):
    """The selector is invalid. The message says where."""


class MessageSelector:
    """A parsed selector."""

    def __init__(self, text: str) -> None:
        """Parse a selector. Raises `SelectorError`."""
        self.text = text
        parser = _SelectorParser(text)
        self._condition = parser.whole()

    def matches(self, values: Values) -> bool:
        """Return True if the selector is true for these values. Type errors count as unknown."""
        return self._condition(values) is True


class _SelectorParser:
    """Recursive descent; each method returns a function of the values."""

    def __init__(self, text: str) -> None:
        if len(text) > SELECTOR_LENGTH_MAX:
            raise SelectorError(f"longer than {SELECTOR_LENGTH_MAX} characters")
        self._tokens = _tokens(text)
        if len(self._tokens) > SELECTOR_TERMS_MAX:
            raise SelectorError(f"more than {SELECTOR_TERMS_MAX} terms")
        self._at = 0
        self._depth = 0
        self._searches = 0

    def whole(self) -> Node:
        node = self._or()
        if self._peek() != _END:
            self._fail("an operator")
        return node

    # --- tokens -------------------------------------------------------------------------------------------------

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        if token != _END:
            self._at += 1
        return token

    def _accept(self, *texts: str) -> str | None:
        kind, text = self._peek()
        if kind in ("word", "sign") and text in texts:
            self._at += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            self._fail(text)

    def _fail(self, wanted: str) -> NoReturn:
        found = self._peek()[1] or "the end"
        raise SelectorError(f"term {self._at + 1}: {wanted} expected, found {found}")

    # --- grammar ------------------------------------------------------------------------------------------------

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH_MAX:
            raise SelectorError(f"nested deeper than {SELECTOR_DEPTH_MAX}")
        parts = [self._and()]
        while self._accept("OR"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda values: _any([_truth(part(values)) for part in parts])

    def _and(self) -> Node:
        parts = [self._not()]
        while self._accept("AND"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda values: _all([_truth(part(values)) for part in parts])

    def _not(self) -> Node:
        turned = False
        while self._accept("NOT"):
            turned = not turned
        node = self._comparison()
        return (lambda values: _negated(_truth(node(values)))) if turned else node

    def _comparison(self) -> Node:
        left = self._sum()
        sign = self._accept("=", "<>", "<", "<=", ">", ">=")
        if sign is not None:
            right = self._sum()
            return lambda values: _compared(sign, left(values), right(values))
        if self._accept("IS"):
            absent = self._accept("NOT") is None
            self._expect("NULL")
            return lambda values: (left(values) is None) is absent
        turned = self._accept("NOT") is not None
        node = self._range(left)
        if node is None:
            if turned:
                self._fail("BETWEEN, IN or LIKE")
            return left
        return (lambda values: _negated(node(values))) if turned else node

    def _range(self, left: Node) -> Node | None:
        if self._accept("BETWEEN"):
            low = self._sum()
            self._expect("AND")
            high = self._sum()
            return lambda values: _all(
                [_compared(">=", left(values), low(values)), _compared("<=", left(values), high(values))]
            )
        if self._accept("IN"):
            self._expect("(")
            found = {self._string()}
            while self._accept(","):
                found.add(self._string())
            self._expect(")")
            return lambda values: None if (value := left(values)) is None else value in found
        if self._accept("LIKE"):
            pattern = self._string()
            escape = self._string() if self._accept("ESCAPE") else ""
            if len(escape) > 1:
                raise SelectorError("ESCAPE takes one character")
            try:
                like = LikePattern(pattern, escape)
            except PatternError as error:
                raise SelectorError(str(error)) from error
            self._searches += like.searches_wildcards
            if self._searches > SELECTOR_SEARCHES_MAX:
                raise SelectorError(f"more than {SELECTOR_SEARCHES_MAX} pattern parts with '_' after '%'")
            return lambda values: like.matches(left(values))
        return None

    def _string(self) -> str:
        kind, text = self._take()
        if kind != "text":
            self._at -= kind != "end"
            self._fail("a string")
        return text

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._accept("+", "-"):
            node = _arithmetic(sign, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._signed()
        while sign := self._accept("*", "/"):
            node = _arithmetic(sign, node, self._signed())
        return node

    def _signed(self) -> Node:
        turned = False
        while sign := self._accept("+", "-"):
            turned ^= sign == "-"
        node = self._primary()
        zero: Node = lambda _values: 0  # noqa: E731 - a node like the others
        return _arithmetic("-", zero, node) if turned else node

    def _primary(self) -> Node:
        if self._accept("("):
            node = self._or()
            self._expect(")")
            return node
        kind, text = self._peek()
        if kind == "name":
            self._at += 1
            return lambda values: values.get(text)
        if kind == "word" and text in ("TRUE", "FALSE"):
            self._at += 1
            return lambda _values: text == "TRUE"
        if kind not in ("integer", "number", "text"):
            self._fail("a value")
        self._at += 1
        constant: Any = text if kind == "text" else _integer(text) if kind == "integer" else float(text)
        return lambda _values: constant


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, offset, end = [], 0, len(text.rstrip())
    while offset < end:
        match = _TOKEN.match(text, offset)
        if match is None:
            raise SelectorError(f"character {offset + 1}: {text[offset : offset + 10]!r} is invalid")
        kind = match.lastgroup or ""
        found = match[kind]
        if kind == "text":
            found = found[1:-1].replace("''", "'")
        elif kind == "name" and found.upper() in _WORDS:
            kind, found = "word", found.upper()
        tokens.append((kind, found))
        offset = match.end()
    return [*tokens, _END]


# --- evaluation -------------------------------------------------------------------------------------------------


def _integer(text: str) -> int:
    """Parse an integer as in Java: ``0x`` is hexadecimal, ``0`` octal. Raises `SelectorError`."""
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)
    except ValueError as error:
        raise SelectorError(f"{text[:10]} is not an octal number") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _all(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _compared(sign: str, left: Any, right: Any) -> bool | None:
    """Compare numbers; strings and booleans for equality only (section 3.8.1.2).

    Different types compare as false, missing values as unknown.
    """
    if left is None or right is None:
        return None
    if _is_number(left) and _is_number(right):
        results = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
        if sign in results:
            return bool(results[sign])
    elif not (
        (isinstance(left, str) and isinstance(right, str)) or (isinstance(left, bool) and isinstance(right, bool))
    ):
        return False
    if sign == "=":
        return bool(left == right)
    return bool(left != right) if sign == "<>" else None


def _quotient(a: int | float, b: int | float) -> int | float:
    """Divide as Java does (section 3.8.1.2): integers round towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        whole = abs(a) // abs(b)
        return whole if (a < 0) is (b < 0) else -whole
    return a / b


def _arithmetic(sign: str, left: Node, right: Node) -> Node:
    def result(values: Values) -> Any:
        a, b = left(values), right(values)
        if not (_is_number(a) and _is_number(b)):
            return None
        try:
            if sign == "+":
                return a + b
            if sign == "-":
                return a - b
            return a * b if sign == "*" else _quotient(a, b)
        except (ZeroDivisionError, OverflowError):
            return None

    return result
