"""`outages`: telemetry -> outages.

On one machine they are found in this process, column by column (`spark.here`); on a cluster, and where outages are
many, by Spark.
"""

from __future__ import annotations

from spark import schemas
from spark.here import outages as here
from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import outages


def _take(batch: Batch) -> None:
    messages = stamps.delivered_here(batch, here.MESSAGE)
    there = batch.lake.read_here("outages", schemas.OUTAGES.columns.names)
    found = here.all_joined(there, messages) if messages is not None else None
    if found is not None:
        batch.overwrite("outages", found)
    else:
        _take_by_spark(batch)


def _take_by_spark(batch: Batch) -> None:
    there, rows = batch.lake.read("outages"), stamps.delivered(batch.lake, batch.rows)
    batch.overwrite("outages", outages.joined(there.unionByName(outages.outages(rows))).coalesce(1))


_FOLLOWING = Following("outages", "telemetry", ("outages",), revision=2, take=_take)
JOB = Job("outages", "when messages waited at their gateway, and how they came", (_FOLLOWING,))
