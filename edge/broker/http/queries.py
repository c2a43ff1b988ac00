"""Query parameters of the HTTP APIs. A parameter without a value counts as absent, as forms send it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from edge.broker.http.limits import PAGE, PAGE_MAX
from edge.broker.http.refusal import RequestRefused

_DIGITS_MAX: Final = 19
"""Digits of a number: those of 64 bits."""
_SHOWN_CHARACTERS_MAX: Final = 40
"""Characters of a wrong value in its error."""


class SortKey(NamedTuple):
    """Order of a table: ``KEY``, or ``-KEY`` for the reverse order."""

    name: str
    reverse: bool


def limit_of(query: Mapping[str, str], default: int = PAGE, most: int = PAGE_MAX) -> int:
    """Return the size of the page that a request wants. Raises RequestRefused."""
    return whole_number(query, "limit", default, most, least=1)


def whole_number(query: Mapping[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    """Return a whole number of a query. Raises RequestRefused."""
    text = query.get(name) or str(default)
    if not (_is_number(text) and least <= int(text) <= most):
        raise RequestRefused(400, f"{name} is a whole number from {least} to {most}, not {_shown(text)}")
    return int(text)


def number_of(query: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a query, a value of `next`; None without it. Raises RequestRefused."""
    text = query.get(name)
    if not text:
        return None
    if not _is_number(text):
        raise RequestRefused(400, f"{name} is a value of `next` in an earlier answer, not {_shown(text)}")
    return int(text)


def choice_of(query: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return one of the choices; the first one if the query has none. Raises RequestRefused."""
    text = query.get(name) or choices[0]
    if text not in choices:
        raise RequestRefused(400, f"{name} is one of {', '.join(filter(None, choices))}, not {_shown(text)}")
    return text


def sort_of(query: Mapping[str, str], keys: Collection[str], default: str) -> SortKey:
    """Return the order that a request wants. Raises RequestRefused."""
    text = query.get("sort") or default
    key = text.removeprefix("-")
    if key not in keys:
        wanted = ", ".join(keys)
        raise RequestRefused(
            400, f"sort is one of {wanted}, with - before it for the reverse order, not {_shown(text)}"
        )
    return SortKey(key, text.startswith("-"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS_MAX])
