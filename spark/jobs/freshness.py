"""`freshness`: telemetry -> gateway_freshness."""

from __future__ import annotations

from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.transforms.freshness import freshness

_SNAPSHOT = Snapshot(
    "freshness",
    ("telemetry",),
    ("gateway_freshness",),
    revision=2,
    frames=lambda lake: {"gateway_freshness": freshness(lake.read("telemetry")).coalesce(1)},
)
JOB = Job("freshness", "last data and lag of each gateway and device", _SNAPSHOT.run)
