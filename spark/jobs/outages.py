"""`outages`: telemetry -> outages."""

from __future__ import annotations

from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import outages


def _take(batch: Batch) -> None:
    there, rows = batch.lake.read("outages"), stamps.delivered(batch.lake, batch.rows)
    batch.overwrite("outages", outages.joined(there.unionByName(outages.outages(rows))).coalesce(1))


_FOLLOWING = Following("outages", "telemetry", ("outages",), revision=2, take=_take)
JOB = Job("outages", "when messages waited at their gateway, and how they came", (_FOLLOWING,))
