"""How much of a lake one page holds: each limit with its unit and why."""

from __future__ import annotations

from typing import Final

ROWS_DRAWN: Final = 50
"""Rows of a table that stand in the page as HTML, and on one leaf of it: a phone shows ten."""
ROWS_MAX: Final = 200
"""Rows of a table of addresses, ranges, outages, devices or anomalies, the worst: more of them nobody reads."""
OUTAGES_MAX: Final = 10_000
"""Outages held one by one, those with the longest delay, for their table and to be marked in charts: 2 MB as JSON. Of
a lake that has more, as it grows over years, the others are counted."""
GATEWAYS_MAX: Final = 20_000
"""Rows of the fleet's table, the worst: some 120 bytes each, so that the page stays below 3 MB."""
FLOWS_MAX: Final = 6
"""Gateways drawn one by one; the rest are in the sum over the fleet and in the tables."""
HELD_CELLS_MAX: Final = 16_000_000
"""Sums of a gateway and a stretch of time, of 4 bytes each, from which the gateways that held most are found: 13 000
gateways by single buckets. Of a larger fleet the stretches are longer."""
RATE_POINTS_MAX: Final = 60
"""Buckets of a rate chart. The hub lands in commits of a second or two; narrower buckets would draw its commits."""
TRACKS_MAX: Final = 48
"""Charts of metrics on a page."""
WINDOWS_MAX: Final = 400_000
"""Rows of rollups looked at for charts of all metrics: some two seconds. Beyond it only metrics with anomalies are
drawn of a fleet, and of one gateway the newest days."""
WINDOWS_DRAWN: Final = 1_500
"""Windows of one metric that are drawn, the newest: more than a screen has columns."""
RAW_SPAN_S_MAX: Final = 45 * 60
"""Seconds of a lake up to which single readings are drawn behind the rollups, which would be a handful of points."""
RAW_ROWS_MAX: Final = 400_000
"""Readings looked at for that."""
UNIT_CHARACTERS_MAX: Final = 16
"""Characters of a unit that a chart shows: more have no room beside a number, and are none of SenML's."""
RAW_POINTS: Final = 150
"""Points a small chart shows; more readings are averaged into so many."""
STRIP_HOURS: Final = 168
"""Hours of a gateway's strip: a week, of which each cell is two pixels at least where the page is wide."""
STRIP_HOURS_MIN: Final = 24
"""Hours of the strip of a lake that is younger: one cell as wide as the page says nothing."""
STRIPS_MAX: Final = 40
"""Gateways with a strip, the worst: two screens, 7 KB."""
SPARK_HOURS: Final = 48
"""Hours of a spark, the last of the strip: today next to yesterday."""
SPARKS_MAX: Final = 200
"""Gateways with a spark in the table of the fleet, the worst: 200 strips are 34 000 rows to read, 14 KB of page."""
WEEK_ROWS_MAX: Final = 4_000_000
"""Rows of `completeness_hourly` up to which two weeks of it are compared: a second or two to read."""
PAGES_MAX: Final = 100
"""Pages of single gateways in a folder, the worst; others are made by name. A page is some 150 KB."""

WITHIN_SHARE: Final = 0.99
"""Share of messages that should be in the lake within the target of `delivery_slo`; below it a gateway is looked at."""
SILENT_S: Final = 900.0
"""Seconds without data, counted back from now, after which a gateway, or the lake, counts as silent: three times
the five minutes at which slow sensors send."""
LAKE_DEAD_S: Final = 3_600.0
"""Seconds without data of any gateway after which that is a failure: the hub or its uplink is down, not one gateway."""
BEHIND_S: Final = 3_600.0
"""Seconds that the drawn tables may lack what has landed: twelve passes of a job that runs each five minutes."""
FUTURE_S: Final = 300.0
"""Seconds that the newest data may lie in the future: the lake itself marks event times that are further ahead."""
INTERVAL_UNKNOWN_S: Final = 86_400.0
"""Seconds assumed between messages of a device that sent only one: a device sends daily at least."""
CHANGES_S: Final = 86_400.0
"""Seconds before now that "what changed" looks back to: who reads the page once a day has seen the rest."""
PLAUSIBLE_FROM_S: Final = 1_577_836_800.0
"""Seconds since 1970 before which no event was: the year 2020, as `transforms.times` has it. A clock was wrong."""
MISSED_MAX: Final = 5
"""Intervals of its own that a device may be silent: some radio losses in a row are usual."""
BOOTS_MAX: Final = 3
"""Starts of a device within its 30 days that need no look: an update, a battery, a power cut."""
BATTERY_DAYS: Final = 30.0
"""Days a battery should last at the slope of its last days; less is time to send somebody."""
CLOCK_AHEAD_S: Final = 5.0
"""Seconds a device's clock may be ahead of its gateway's: NTP holds far less."""
SMALL_FILE_BYTES: Final = 1_000_000
"""Mean size of a table's files below which, from `SMALL_FILES` on, they are said to be small: opening costs more than
reading."""
SMALL_FILES: Final = 500
"""Files of a table from which their size matters."""
