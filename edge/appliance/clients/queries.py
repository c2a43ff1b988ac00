"""Query parameters of the clients API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.appliance.clients.documents import PAGE, PAGE_MAX
from edge.broker.http.refusal import RequestRefused


def limit_of(query: Mapping[str, str]) -> int:
    """Return the size of the page that a request wants. Raises RequestRefused."""
    text = query.get("limit", str(PAGE))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PAGE_MAX):
        raise RequestRefused(400, f"limit is a whole number from 1 to {PAGE_MAX}, not {text[:40]!r}")
    return int(text)


def number_of(query: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a query; None without it. Raises RequestRefused."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestRefused(400, f"{name} is a value of `next` in an earlier answer, not {text[:40]!r}")
    return int(text)


def choice_of(query: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return one of the choices; the first one if the query has none. Raises RequestRefused."""
    text = query.get(name, choices[0])
    if text not in choices:
        raise RequestRefused(400, f"{name} is one of {', '.join(choices)}, not {text[:40]!r}")
    return text
