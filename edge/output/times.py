"""Formatting of times."""

from __future__ import annotations

import time


def moment(utc_s: float) -> str:
    """Return ISO 8601 of UTC seconds since 1970, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(utc_s))


def moment_us(utc_us: int | None) -> str | None:
    """Return ISO 8601 of UTC microseconds since 1970; None for None."""
    return None if utc_us is None else moment(utc_us / 1e6)
