"""`rollups`: readings -> rollup_1m. `hours`: readings -> rollup_1h, rollup_1d.

No watermark: a gateway that was offline for a week is right, not late. New readings are aggregated by window, and each
window is folded into what the tables have of it, if anything: a pass costs its readings and the files of the windows
they touch, however old those are, and late data of one gateway does not read or rewrite the windows of others.

Minutes are what people wait for. Hours and days hardly change by a few readings: that is a job of its own, which need
not follow as closely.
"""

from __future__ import annotations

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import rollups

BATCH_ROWS_MAX = 4_000_000
"""A batch more costs another fold, and of hours one into each window."""


def _take_minutes(batch: Batch) -> None:
    batch.fold("rollup_1m", rollups.by_minute(batch.rows), rollups.FOLD)


def _take_hours(batch: Batch) -> None:
    found = batch.fold("rollup_1h", rollups.by_hour(batch.aside(batch.rows)), rollups.FOLD)
    batch.fold("rollup_1d", rollups.by_day(found), rollups.FOLD)


_MINUTES = Following("rollups", "readings", ("rollup_1m",), revision=4, take=_take_minutes, batch_rows=BATCH_ROWS_MAX)
_HOURS = Following(
    "hours",
    "readings",
    ("rollup_1h", "rollup_1d"),
    revision=2,
    take=_take_hours,
    batch_rows=BATCH_ROWS_MAX,
)
MINUTES = Job("rollups", "count, min, max, sum, mean, last per metric and minute", (_MINUTES,), round="values")
HOURS = Job("hours", "the same per hour and day", (_HOURS,))
