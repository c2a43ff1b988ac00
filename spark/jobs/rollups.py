"""`rollups`: readings -> rollup_1m. `hours`: readings -> rollup_1h, rollup_1d.

Rollups have no watermark: data of a gateway that was offline for a week is valid, not late. New readings are aggregated
by window, and each window is merged into its row in the table. The cost of a pass depends on its readings and on the
files with their windows, not on their age.
"""

from __future__ import annotations

from spark.jobs.job import AnalyticsJob
from spark.jobs.stream import MicroBatch, StreamStep
from spark.transforms import rollups


def _process_minutes(batch: MicroBatch) -> None:
    batch.fold("rollup_1m", rollups.by_minute(batch.rows), rollups.FOLD)


def _process_hours(batch: MicroBatch) -> None:
    found = batch.fold("rollup_1h", rollups.by_hour(batch.rows), rollups.FOLD)
    batch.fold("rollup_1d", rollups.by_day(found), rollups.FOLD)


_MINUTES = StreamStep("rollups", "readings", ("rollup_1m",), revision=4, process=_process_minutes)
_HOURS = StreamStep("hours", "readings", ("rollup_1h", "rollup_1d"), revision=2, process=_process_hours)
MINUTES = AnalyticsJob(
    "rollups", "count, min, max, sum, mean, last per metric and minute", (_MINUTES,), rhythm="values"
)
HOURS = AnalyticsJob("hours", "the same per hour and day", (_HOURS,), rhythm="hourly")
