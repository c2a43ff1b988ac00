"""`outages`: telemetry -> outages."""

from __future__ import annotations

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import outages


def _take(batch: Batch) -> None:
    there = batch.lake.read("outages")
    batch.overwrite("outages", outages.joined(there.unionByName(outages.outages(batch.rows))).coalesce(1))


_FOLLOWING = Following("outages", "telemetry", ("outages",), revision=1, take=_take)
JOB = Job("outages", "when messages waited at their gateway, and how they came", (_FOLLOWING,))
