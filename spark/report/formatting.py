"""Format numbers, times and durations of the page: UTC, thin spaces before units, three significant digits."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from spark.amounts import count, counted

THIN_SPACE = "\u202f"
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float) -> str:
    """Format with three significant digits, and with an SI prefix from ten thousand on."""
    if not math.isfinite(value):
        return "-"
    magnitude = abs(value)
    if magnitude >= 1e15 or 0 < magnitude < 1e-3:
        return f"{value:.2e}"
    if magnitude >= 1e4:
        for size, prefix in _SI:
            if magnitude >= size:
                return f"{_significant(value / size)}{THIN_SPACE}{prefix}"
    if magnitude >= 1e3:
        return count(round(value))
    return _significant(value)


def _significant(value: float) -> str:
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2
    while 0 < magnitude < 10.0 ** (2 - decimals):
        decimals += 1
    text = f"{value:.{decimals}f}"
    if decimals:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "\u2212")


def percent(share: float) -> str:
    """Format a share: `0.1333` -> `13.3 %`. A share above zero never reads 0 %, and one below one never 100 %."""
    if 0 < share < 0.001:
        return f"<{THIN_SPACE}0.1{THIN_SPACE}%"
    if 0.9995 <= share < 1:
        return f">{THIN_SPACE}99.9{THIN_SPACE}%"
    return f"{share * 100:.1f}{THIN_SPACE}%".replace(".0", "")


def duration(seconds: float | None) -> str:
    """Format seconds in a readable unit."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"\u2212{duration(-seconds)}"
    if 0 < seconds < 1:
        return f"{round(seconds * 1e3)}{THIN_SPACE}ms"
    if seconds < 120:
        return f"{_significant(seconds)}{THIN_SPACE}s"
    for size, unit, smaller, rest in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, left = divmod(round(seconds / smaller), size // smaller)
            return f"{whole}{THIN_SPACE}{unit} {left}{THIN_SPACE}{rest}" if left else f"{whole}{THIN_SPACE}{unit}"
    raise AssertionError(seconds)


def age(seconds: float) -> str:
    """Format an age in one unit in full: `58 days`, `2 hours`, `1 minute`."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        # 23 hours 59 minutes are a day: the next unit begins half a smaller one early.
        if seconds >= size - 0.5 * {86_400: 3_600, 3_600: 60, 60: 1}[size]:
            return counted(max(1, int(seconds / size + 1e-9)), unit)
    return counted(round(seconds), "second")


def ago(seconds: float) -> str:
    """Format an age relative to now: `58 days ago`; `in 2 hours` if it is in the future."""
    return f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"


def moment(at: datetime) -> str:
    """Format date and time to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def clock(at: datetime) -> str:
    """Format the time of day to the second."""
    return f"{at.astimezone(UTC):%H:%M:%S}"


def size(count: float) -> str:
    """Format bytes with an SI prefix: `1.5 MB`."""
    for unit, prefix in _SI:
        if count >= unit:
            return f"{_significant(count / unit)}{THIN_SPACE}{prefix}B"
    return f"{_significant(count)}{THIN_SPACE}B"
