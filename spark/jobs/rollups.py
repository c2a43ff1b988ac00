"""`rollups`: readings -> rollup_1m. `hours`: readings -> rollup_1h, rollup_1d.

No watermark: a gateway that was offline for a week is right, not late. New readings are aggregated by window, and each
window is folded into what the tables have of it, if anything: a pass costs its readings and the files of the windows
they touch, however old those are, and late data of one gateway does not read or rewrite the windows of others.

Minutes are what people wait for. Hours and days hardly change by a few readings: that is a job of its own, which need
not follow as closely.

On one machine the windows are made in this process, column by column (`spark.here`), which takes a twentieth of the
processor time that Spark takes for them. On a cluster, and where a batch is too large for a process, Spark makes them.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from spark.here import parts
from spark.here.times import DAY_US, HOUR_US, MINUTE_US
from spark.here.windows import READING, combined, of_readings
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import rollups

BATCH_ROWS_MAX = 4_000_000
"""A batch more costs another fold, and of hours one into each window."""
HERE_MAX = 4_000_000
"""Windows of a batch that are held in this process: of a reading or two each they take 600 MB."""


def _take_minutes(batch: Batch) -> None:
    minutes = _windows(batch, MINUTE_US)
    if minutes is None:
        batch.fold("rollup_1m", rollups.by_minute(batch.rows), rollups.FOLD)
    else:
        batch.fold_here("rollup_1m", minutes, partial(combined, width_us=MINUTE_US), rollups.FOLD)


def _take_hours(batch: Batch) -> None:
    hours = _windows(batch, HOUR_US)
    if hours is None:
        found = batch.fold("rollup_1h", rollups.by_hour(batch.aside(batch.rows)), rollups.FOLD)
        batch.fold("rollup_1d", rollups.by_day(found), rollups.FOLD)
    else:
        batch.fold_here("rollup_1h", hours, partial(combined, width_us=HOUR_US), rollups.FOLD)
        batch.fold_here("rollup_1d", combined(hours, DAY_US), partial(combined, width_us=DAY_US), rollups.FOLD)


def _windows(batch: Batch, width_us: int) -> pa.Table | None:
    """Those of the batch, made in this process; None where Spark is to make them."""
    readings = batch.here(READING)
    if readings is None:
        return None
    made, one = (partial(each, width_us=width_us) for each in (of_readings, combined))
    return parts.summed(readings, made, one, HERE_MAX)


_MINUTES = Following("rollups", "readings", ("rollup_1m",), revision=3, take=_take_minutes, batch_rows=BATCH_ROWS_MAX)
_HOURS = Following(
    "hours",
    "readings",
    ("rollup_1h", "rollup_1d"),
    revision=1,
    take=_take_hours,
    batch_rows=BATCH_ROWS_MAX,
)
MINUTES = Job("rollups", "count, min, max, sum, mean, last per metric and minute", (_MINUTES,), round="values")
HOURS = Job("hours", "the same per hour and day", (_HOURS,))
