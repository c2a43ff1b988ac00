"""`health`: readings -> device_days -> device_health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.jobs.job import AnalyticsJob
from spark.jobs.snapshot import SnapshotStep
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import SparkLake
from spark.transforms import health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _process(batch: MicroBatch) -> None:
    batch.fold("device_days", health.days(batch.rows), health.FOLD)


def _frames(lake: SparkLake) -> Mapping[str, DataFrame]:
    return {"device_health": health.health(lake.read("device_days"))}


JOB = AnalyticsJob(
    "health",
    "battery, silence, reboots, clock and radio of each device",
    (
        StreamStep("device_days", "readings", ("device_days",), revision=3, process=_process),
        SnapshotStep("device_health", ("device_days",), ("device_health",), revision=1, frames=_frames),
    ),
    rhythm="hourly",
)
