"""LIKE of selectors (Jakarta Messaging 3.1 section 3.8.1.1): ``%`` matches any characters, ``_`` one.

Each part between two ``%`` is searched once, from left to right. Its first match leaves the most text for the following
parts, so there is no backtracking. A part with ``_`` is searched with a bit for each of its characters, in one step for
each character of the text (Baeza-Yates and Gonnet, 1992).
"""

from __future__ import annotations

from typing import Any, Final

from edge.broker.limits import SELECTOR_TEXT_CHARACTERS_MAX

_ONE: Final = None
"""Placeholder for ``_`` in a list of characters."""


class PatternError(ValueError):
    """The pattern is invalid."""


class LikePattern:
    """A parsed LIKE pattern."""

    def __init__(self, pattern: str, escape: str) -> None:
        """`escape`: the character that escapes the next one; empty: none. Raises PatternError."""
        first, *others = [_LiteralPart(characters) for characters in _pieces(pattern, escape)]
        self._first = first
        self._between = [piece for piece in others[:-1] if piece.length]
        self._last = others[-1] if others else None
        """None without ``%``."""

    @property
    def searches_wildcards(self) -> int:
        """Number of searched parts with ``_``."""
        return sum(piece.literal is None for piece in self._between)

    def matches(self, value: Any) -> bool | None:
        """Return None (unknown) without a value, or above `limits.SELECTOR_TEXT_CHARACTERS_MAX` characters."""
        if not isinstance(value, str):
            return None if value is None else False
        return self._is_like(value) if len(value) <= SELECTOR_TEXT_CHARACTERS_MAX else None

    def _is_like(self, text: str) -> bool:
        first, last, end = self._first, self._last, len(text)
        if last is None:
            return first.length == end and first.is_at(text, 0)
        if end < first.length + last.length or not first.is_at(text, 0) or not last.is_at(text, end - last.length):
            return False
        at, end = first.length, end - last.length
        for piece in self._between:
            found = piece.find(text, at, end)
            if found < 0:
                return False
            at = found + piece.length
        return True


class _LiteralPart:
    """A part of a pattern without ``%``."""

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self.literal: str | None = None
        """Text of a part without ``_``; else None."""
        self._characters = characters
        if _ONE not in characters:
            self.literal = "".join(character for character in characters if character is not None)
            return
        wild = sum(1 << i for i, character in enumerate(characters) if character is _ONE)
        self._wild = wild
        self._masks: dict[str, int] = {}
        for i, character in enumerate(characters):
            if character is not None:
                self._masks[character] = self._masks.get(character, wild) | 1 << i

    def is_at(self, text: str, at: int) -> bool:
        """Return True if the part matches at this position. The text is long enough."""
        if self.literal is not None:
            return text.startswith(self.literal, at)
        return all(one is _ONE or one == text[at + i] for i, one in enumerate(self._characters))

    def find(self, text: str, start: int, end: int) -> int:
        """Return the position of the first match between `start` and `end`; -1 without one."""
        if self.literal is not None:
            return text.find(self.literal, start, end)
        masks, wild, last = self._masks, self._wild, 1 << (self.length - 1)
        state = 0
        for i in range(start, end):
            state = (state << 1 | 1) & masks.get(text[i], wild)
            if state & last:
                return i - self.length + 1
        return -1


def _pieces(pattern: str, escape: str) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError(f"no character after the escape character at the end of {pattern[-20:]!r}")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(_ONE if character == "_" else character)
    return pieces
