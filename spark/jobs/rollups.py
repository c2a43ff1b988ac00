"""`rollups`: readings -> rollup_1m, rollup_1h, rollup_1d.

No watermark: a gateway that was offline for a week is right, not late. New readings are aggregated by window, and each
window is folded into what the tables have of it, if anything: a pass costs its readings and the files of the windows
they touch, however old those are, and late data of one gateway does not read or rewrite the windows of others.
"""

from __future__ import annotations

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import rollups


def _take(batch: Batch) -> None:
    minutes = batch.fold("rollup_1m", rollups.by_minute(batch.rows), rollups.FOLD)
    hours = batch.fold("rollup_1h", rollups.by_hour(minutes), rollups.FOLD)
    batch.fold("rollup_1d", rollups.by_day(hours), rollups.FOLD)


_FOLLOWING = Following("rollups", "readings", ("rollup_1m", "rollup_1h", "rollup_1d"), revision=3, take=_take)
JOB = Job("rollups", "count, min, max, sum, mean, last per metric and minute, hour, day", (_FOLLOWING,), round="values")
