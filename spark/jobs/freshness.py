"""`freshness`: telemetry -> gateway_freshness."""

from __future__ import annotations

from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import freshness


def _take(batch: Batch) -> None:
    batch.fold("gateway_freshness", freshness.freshness(stamps.delivered(batch.lake, batch.rows)), freshness.FOLD)


_FOLLOWING = Following("freshness", "telemetry", ("gateway_freshness",), revision=4, take=_take)
JOB = Job("freshness", "last data and lag of each gateway and device", (_FOLLOWING,))
