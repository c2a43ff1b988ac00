"""Amounts as people read them. Every table, log line and sentence writes a number the same way: 13,719."""

from __future__ import annotations


def number(value: float, decimals: int = 0) -> str:
    """Return `13719` as `13,719`."""
    return f"{value:,.{decimals}f}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 message`, `2 messages` or, with the plural `entries`, `1,000 entries`."""
    return f"{number(count)} {noun if count == 1 else plural or f'{noun}s'}"


def verb(count: int, singular: str, plural: str) -> str:
    """Return the verb that agrees with `count` things: `1 message waits`, `2 messages wait`."""
    return singular if count == 1 else plural


def size(count: float | None) -> str:
    """Return bytes with a decimal prefix: `1.5 MB`; `-` where they are not known."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{number(count, 1)} TB"


def span(seconds: float | None) -> str:
    """Return a length of time in the unit a person would choose; `-` where it is not known."""
    if seconds is None:
        return "-"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    days = seconds / 86_400
    return f"{days:.0f} days" if days < 3650 else "over 10 years"
