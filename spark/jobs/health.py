"""`health`: readings -> device_days -> device_health.

On one machine both are made in this process, column by column (`spark.here`); on a cluster, and where it is too much
for a process, by Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark.here import device_days, device_health
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transforms import health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


HERE_MAX: Final = 4_000_000
"""Readings of a batch whose columns are held in this process: 400 MB."""


def _take(batch: Batch) -> None:
    parts = batch.here(device_days.READING) if batch.count <= HERE_MAX else None
    if parts is None:
        batch.fold("device_days", health.days(batch.aside(batch.rows)), health.FOLD)
    else:
        # All at once: a message is counted once, and may be in two parts.
        days = device_days.days(pa.concat_tables(parts))
        batch.fold_here("device_days", days, device_days.combined, health.FOLD)


def _frames(lake: Lake) -> Mapping[str, DataFrame] | Mapping[str, pa.Table]:
    days = device_health.recent(lake.read_here("device_days", device_health.DAY)) if lake.here else None
    if days is not None:
        return {"device_health": device_health.health(days)}
    return {"device_health": health.health(lake.read("device_days")).coalesce(1)}


JOB = Job(
    "health",
    "battery, silence, reboots, clock and radio of each device",
    (
        Following("device_days", "readings", ("device_days",), revision=3, take=_take),
        Snapshot("device_health", ("device_days",), ("device_health",), revision=1, frames=_frames),
    ),
)
