"""`freshness`: telemetry -> gateway_freshness.

On one machine rows are made in this process, column by column (`spark.here`). On a cluster, and where a batch has too
many devices for a process, Spark makes them.
"""

from __future__ import annotations

import pyarrow as pa

from spark.here import freshness as here
from spark.here import parts
from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import freshness


def _take(batch: Batch) -> None:
    rows = _rows_here(batch)
    if rows is None:
        batch.fold("gateway_freshness", freshness.freshness(stamps.delivered(batch.lake, batch.rows)), freshness.FOLD)
    else:
        batch.fold_here("gateway_freshness", rows, here.combined, freshness.FOLD)


def _rows_here(batch: Batch) -> pa.Table | None:
    """Those of the batch, made in this process; None where Spark is to make them."""
    messages = stamps.delivered_here(batch, here.MESSAGE)
    if messages is None:
        return None
    devices = parts.summed(messages, here.of_devices, here.combined, here.ROWS_MAX)
    return None if devices is None else here.with_gateways(devices)


_FOLLOWING = Following("freshness", "telemetry", ("gateway_freshness",), revision=4, take=_take)
JOB = Job("freshness", "last data and lag of each gateway and device", (_FOLLOWING,))
