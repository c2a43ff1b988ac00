"""Times as people and programs read them."""

from __future__ import annotations

import time


def moment(utc_s: float) -> str:
    """UTC seconds since 1970, as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(utc_s))


def moment_us(utc_us: int | None) -> str | None:
    """The same of microseconds; None of none."""
    return None if utc_us is None else moment(utc_us / 1e6)
