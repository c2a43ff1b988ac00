"""`throughput`: telemetry -> throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transforms import throughput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    telemetry = lake.read("telemetry")
    row = throughput.span(telemetry).first()
    width_s = throughput.bucket_seconds(row["span_s"] or 0.0 if row is not None else 0.0)
    return {"throughput": throughput.throughput(telemetry, width_s).coalesce(1)}


_SNAPSHOT = Snapshot("throughput", ("telemetry",), ("throughput",), revision=2, frames=_frames)
JOB = Job("throughput", "rows received and landed over time", _SNAPSHOT.run)
