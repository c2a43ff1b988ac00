"""Limits of a page: each with its unit and reason."""

from __future__ import annotations

from typing import Final

ROWS_DRAWN: Final = 50
"""Rows of a table that are in the page as HTML, and on one leaf of it; a phone shows ten."""
ROWS_MAX: Final = 200
"""Rows of a table of addresses, ranges, outages, devices or anomalies, the worst. Readers do not read more."""
OUTAGES_MAX: Final = 10_000
"""Outages that are kept singly, those with the longest delay, for their table and the charts: 2 MB as JSON. Further
ones are only counted.
"""
GATEWAYS_MAX: Final = 20_000
"""Rows of the fleet's table, the worst: about 120 bytes each, so that the page stays below 3 MB."""
FLOWS_MAX: Final = 6
"""Gateways that are drawn singly; the others are in the sum of the fleet and in the tables."""
HELD_CELLS_MAX: Final = 16_000_000
"""Sums per gateway and period, of 4 bytes each, to find the gateways with the largest backlogs.

That is enough for 13 000 gateways with single buckets. Larger fleets get longer periods.
"""
RATE_POINTS_MAX: Final = 60
"""Buckets of a rate chart. The hub commits every second or two; narrower buckets would show its commits."""
TRACKS_MAX: Final = 48
"""Charts of metrics on a page."""
WINDOWS_MAX: Final = 400_000
"""Rows of rollups that are read for charts of all metrics, in about two seconds.

Of a larger fleet only metrics with anomalies are drawn; of a larger gateway only the newest days.
"""
WINDOWS_DRAWN: Final = 1_500
"""Windows of one metric that are drawn, the newest: more than a screen has columns."""
RAW_SPAN_S_MAX: Final = 45 * 60
"""Seconds of a lake up to which single readings are drawn behind the rollups, which would be only a few points."""
RAW_ROWS_MAX: Final = 400_000
"""Readings that are read for that."""
UNIT_CHARACTERS_MAX: Final = 16
"""Characters of a unit in a chart. Longer ones do not fit next to a number, and SenML has none."""
RAW_POINTS: Final = 150
"""Points of a small chart; more readings are averaged into this number."""
STRIP_HOURS: Final = 168
"""Hours of a gateway's strip: a week; each cell has at least two pixels on a wide page."""
STRIP_HOURS_MIN: Final = 24
"""Hours of the strip of a younger lake: a single cell as wide as the page would show nothing."""
STRIPS_MAX: Final = 40
"""Gateways with a strip, the worst: two screens, 7 KB."""
SPARK_HOURS: Final = 48
"""Hours of a sparkline, the last of the strip: today next to yesterday."""
SPARKS_MAX: Final = 200
"""Gateways with a sparkline in the fleet's table, the worst: 200 strips are 34 000 rows to read and 14 KB of page."""
WEEK_ROWS_MAX: Final = 4_000_000
"""Rows of `completeness_hourly` up to which two weeks of it are compared: a second or two to read."""
PAGES_MAX: Final = 100
"""Pages of single gateways in a folder, the worst. Others are made by name. A page has about 150 KB."""

WITHIN_SHARE: Final = 0.99
"""Share of messages that should be in the lake within the target of `delivery_slo`; a gateway below it needs a look."""
SILENT_S: Final = 900.0
"""Seconds without data, up to now, after which a gateway or the lake counts as silent.

It is three times the five minutes at which slow sensors send.
"""
LAKE_DEAD_S: Final = 3_600.0
"""Seconds without data of any gateway after which the hub or its uplink has failed, not one gateway."""
BEHIND_S: Final = 3_600.0
"""Seconds that the drawn tables may be behind the landed data: twelve passes of a job that runs every five minutes."""
FUTURE_S: Final = 300.0
"""Seconds that the newest data may be in the future; the lake marks event times that are further ahead."""
INTERVAL_UNKNOWN_S: Final = 86_400.0
"""Assumed seconds between messages of a device that sent only one: a device sends at least daily."""
CHANGES_S: Final = 86_400.0
"""Seconds that "what changed" looks back: a daily reader has seen the rest."""
PLAUSIBLE_FROM_S: Final = 1_577_836_800.0
"""Seconds since 1970 of the earliest plausible event: the year 2020, as in `transforms.times`. Earlier times come from
a wrong clock.
"""
MISSED_MAX: Final = 5
"""Intervals that a device may be silent: a few radio losses in a row are usual."""
BOOTS_MAX: Final = 3
"""Starts of a device within its 30 days that need no look: an update, a battery, a power cut."""
BATTERY_DAYS: Final = 30.0
"""Days that a battery should last at the slope of its last days. With less, it is time to replace it."""
CLOCK_AHEAD_S: Final = 5.0
"""Seconds that a device's clock may be ahead of its gateway's; NTP keeps it far below."""
SMALL_FILE_BYTES: Final = 1_000_000
"""Mean file size below which a table with `SMALL_FILES` files has small files: opening them costs more than reading."""
SMALL_FILES: Final = 500
"""Number of files of a table from which their size matters."""
