"""`rollups`: readings -> rollup_1m. `hours`: readings -> rollup_1h, rollup_1d.

No watermark: a gateway that was offline for a week is right, not late. New readings are aggregated by window, and each
window is folded into the table's row of it, if there is one. A pass costs its readings and the files of the windows
they touch, however old those are.
"""

from __future__ import annotations

from spark.jobs.outcome import Job
from spark.jobs.stream import MicroBatch, StreamStep
from spark.transforms import rollups


def _take_minutes(batch: MicroBatch) -> None:
    batch.fold("rollup_1m", rollups.by_minute(batch.rows), rollups.FOLD)


def _take_hours(batch: MicroBatch) -> None:
    found = batch.fold("rollup_1h", rollups.by_hour(batch.rows), rollups.FOLD)
    batch.fold("rollup_1d", rollups.by_day(found), rollups.FOLD)


_MINUTES = StreamStep("rollups", "readings", ("rollup_1m",), revision=4, take=_take_minutes)
_HOURS = StreamStep("hours", "readings", ("rollup_1h", "rollup_1d"), revision=2, take=_take_hours)
MINUTES = Job("rollups", "count, min, max, sum, mean, last per metric and minute", (_MINUTES,), rhythm="values")
HOURS = Job("hours", "the same per hour and day", (_HOURS,), rhythm="hourly")
