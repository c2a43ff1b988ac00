"""`slo`: telemetry -> delivery_slo."""

from __future__ import annotations

from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import slo


def _take(batch: Batch) -> None:
    batch.fold("delivery_slo", slo.slo(stamps.delivered(batch.lake, batch.rows)), slo.FOLD)


_FOLLOWING = Following("slo", "telemetry", ("delivery_slo",), revision=2, take=_take)
JOB = Job("slo", "delivery time and share within target of each gateway, by hour and day", (_FOLLOWING,))
