"""`gaps`: telemetry, ledger, manifests -> gaps, completeness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transforms import gaps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    # Checkpointed in memory: four parts of the two results hang on these two small frames.
    words = gaps.words(lake.read("telemetry")).localCheckpoint(eager=False)
    missing = gaps.missing(words, lake.read("ledger"), lake.read("manifests")).localCheckpoint(eager=False)
    return {"gaps": missing.coalesce(1), "completeness": gaps.completeness(words, missing).coalesce(1)}


_SNAPSHOT = Snapshot("gaps", ("telemetry", "ledger", "manifests"), ("gaps", "completeness"), revision=2, frames=_frames)
JOB = Job("gaps", "missing, explained and duplicate sequences of each address", _SNAPSHOT.run)
