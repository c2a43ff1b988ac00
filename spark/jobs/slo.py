"""`slo`: telemetry -> delivery_slo.

On one machine rows are made in this process, column by column (`spark.here`). On a cluster, and where a batch has too
many hours of gateways for a process, Spark makes them.
"""

from __future__ import annotations

import pyarrow as pa

from spark.here import parts
from spark.here import slo as here
from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import slo


def _take(batch: Batch) -> None:
    rows = _rows_here(batch)
    if rows is None:
        batch.fold("delivery_slo", slo.slo(stamps.delivered(batch.lake, batch.rows)), slo.FOLD)
    else:
        batch.fold_here("delivery_slo", rows, here.combined, slo.FOLD)


def _rows_here(batch: Batch) -> pa.Table | None:
    """Those of the batch, made in this process; None where Spark is to make them."""
    messages = stamps.delivered_here(batch, here.MESSAGE)
    if messages is None:
        return None
    hours = parts.summed(messages, here.of_hours, here.combined, here.ROWS_MAX)
    return None if hours is None else here.with_days(hours)


_FOLLOWING = Following("slo", "telemetry", ("delivery_slo",), revision=2, take=_take)
JOB = Job("slo", "delivery time and share within target of each gateway, by hour and day", (_FOLLOWING,))
