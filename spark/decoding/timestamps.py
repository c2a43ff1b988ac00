"""Times as devices write them, in microseconds since 1970 UTC.

Numbers are seconds, milli-, micro- or nanoseconds since 1970 by their magnitude: each range covers the years 1973 to
5138 in its unit, so a time between them has one meaning. A smaller number is the time of a clock that began at zero, if
its field can only be a time (`ts`, `timestamp`, a field that a schema names); under `time` it may be a duration. Text
is ISO 8601 with at least minutes, in upper or lower case (RFC 3339 section 5.6), or the date of a mail or of HTTP (RFC
5322 section 3.3, RFC 1123 section 5.2.14); without a zone it is UTC. Whether the clock is plausible is decided later.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

FIELDS: Final = ("ts", "time", "timestamp", "Time", "Timestamp", "TS")
"""Names of fields with the time of the measurement, unless a schema names another."""
DURATIONS: Final = ("time", "Time")
"""Fields that may also hold durations: a small number there is a value."""
_MAGNITUDES: Final = ((10**17, 10**20, 1e-3), (10**14, 10**17, 1), (10**11, 10**14, 1_000), (10**8, 10**11, 1_000_000))
"""Lower and upper bound, and microseconds per unit."""
_SECONDS_MIN: Final = 10**8
"""Numbers from here on are seconds since 1970."""
TIME_US_MAX: Final = 253_402_300_799_999_999
"""Last microsecond of the year 9999: readers of the lake cannot show later ones."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ISO_MINUTES: Final = len("2026-03-14T09:26")
_ISO_MAX: Final = 40
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def field_time(name: str, raw: object) -> int | None:
    """Return the time in a field with this name, in microseconds; None if it holds none.

    A number below all magnitudes counts from the start of the device. It becomes a time in 1970, which is implausible.
    """
    time_us = parse_time(raw)
    small = time_us is None and name not in DURATIONS and type(raw) in (int, float)
    return int(raw * 1_000_000) if small and 0 <= raw < _SECONDS_MIN else time_us  # type: ignore[operator]


def parse_time(raw: object) -> int | None:
    """Return the time that a field holds, in microseconds; None if it holds none."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return _parse_number(raw)
    return _parse_text(raw) if isinstance(raw, str) else None


def _parse_number(number: float) -> int | None:
    for low, high, unit in _MAGNITUDES:
        if low <= number < high:
            scaled = round(number * unit) if unit >= 1 else int(number) // 1_000
            return scaled if scaled <= TIME_US_MAX else None
    return None


def _parse_text(text: str) -> int | None:
    if len(text) > _ISO_MAX:
        return None
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return _parse_number(float(text) if "." in text else int(text))
    if len(text) < _ISO_MINUTES or ":" not in text:
        return None
    try:
        at = datetime.fromisoformat(text.upper()) if text[0].isdigit() else _parse_mail_date(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    time_us = (aware - _EPOCH) // _MICROSECOND
    return time_us if time_us <= TIME_US_MAX else None


def _parse_mail_date(text: str) -> datetime:
    """Parse `Sat, 14 Mar 2026 09:26:53 GMT`. Raises ValueError, and other errors of Python's mail parser."""
    day, comma, _ = text.partition(", ")
    if not comma or day not in _DAYS:
        raise ValueError(text)
    return parsedate_to_datetime(text)
