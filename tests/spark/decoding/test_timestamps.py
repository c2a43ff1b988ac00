"""Formats of times that devices write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.decoding.timestamps import parse_time

AT_US = 1_773_480_413_250_000


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (AT_US * 1000, AT_US),
        (AT_US, AT_US),
        (AT_US // 1000, AT_US),
        (AT_US // 10**6, AT_US // 10**6 * 10**6),
        (AT_US / 1e6, AT_US),
        (AT_US / 1e3, AT_US),
        ("2026-03-14T09:26:53.25Z", AT_US),
        ("2026-03-14T09:26:53.250", AT_US),
        ("2026-03-14 09:26:53.25", AT_US),
        ("2026-03-14T11:26:53.250+02:00", AT_US),
        ("2026-03-14T09:26:53.250000000Z", AT_US),
        ("20260314T092653.250", None),  # no colon: might be a serial number
        ("2026-03-14T09:26", AT_US - 53_250_000),
        ("2026-03-14t09:26:53.25z", AT_US),
        ("Sat, 14 Mar 2026 09:26:53 GMT", AT_US - 250_000),
        ("Sat, 14 Mar 2026 11:26:53 +0200", AT_US - 250_000),
        ("Sat, 14 Mar 2026 09:26:53 -0000", AT_US - 250_000),
        ("Sat, 14 Mar 2026", None),
        ("Sat, 31 Feb 2026 09:26:53 GMT", None),
        ("Sat, 14 Mar 2026 99:26:53 GMT", None),
        ("Pump: on, 14 Mar 2026 09:26:53", None),
        ("9999-12-31T23:59:59-14:00", None),  # later than the year 9999 in UTC
        (str(AT_US // 1000), AT_US),
        (f"{AT_US / 1e6:.3f}", AT_US),
        ("1970-01-01T00:00:12Z", 12_000_000),
        ("0001-01-01T00:00:00+14:00", -62_135_596_800_000_000 - 14 * 3_600_000_000),
        (12.5, None),
        (99_999_999, None),
        (-AT_US, None),
        (10**20, None),
        (True, None),
        (None, None),
        ("now", None),
        ("2026-03-14", None),
        ("12:30:00", None),
        ("", None),
        ([], None),
        (float("nan"), None),
    ],
)
def test_forms(said: object, expected: int | None) -> None:
    assert parse_time(said) == expected


@given(st.text(max_size=45) | st.integers() | st.floats() | st.datetimes().map(str))
def test_nothing_is_raised(said: object) -> None:
    found = parse_time(said)
    assert found is None or isinstance(found, int)
