"""`gaps`: telemetry, ledger, manifests -> landed_ranges, given_up_ranges, accepted_ranges -> gaps, completeness.

What has landed, was given up and was accepted is kept as ranges of sequences, which stay as few as there are addresses
and holes however much lands; each pass adds what is new to them. What is missing then follows from the ranges alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transforms import gaps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANGES = ("landed_ranges", "given_up_ranges", "accepted_ranges")


def _land(batch: Batch) -> None:
    fresh = gaps.landed(batch.rows)
    batch.overwrite("landed_ranges", gaps.joined(batch.lake.read("landed_ranges").unionByName(fresh)).coalesce(1))


def _give_up(batch: Batch) -> None:
    there = batch.lake.read("given_up_ranges")
    batch.overwrite("given_up_ranges", gaps.given_up(there.unionByName(batch.rows.select(*there.columns))).coalesce(1))


def _accept(batch: Batch) -> None:
    there = batch.lake.read("accepted_ranges")
    batch.overwrite("accepted_ranges", gaps.accepted(there.unionByName(batch.rows.select(*there.columns))).coalesce(1))


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    # Checkpointed in memory: parts of both results hang on this small frame.
    there, given_up, accepted = (lake.read(name) for name in _RANGES)
    missing = gaps.missing(there, given_up, accepted).localCheckpoint(eager=False)
    return {"gaps": missing.coalesce(1), "completeness": gaps.completeness(there, missing).coalesce(1)}


JOB = Job(
    "gaps",
    "missing, explained and duplicate sequences of each address",
    (
        Following("landed_ranges", "telemetry", ("landed_ranges",), revision=1, take=_land),
        Following("given_up_ranges", "ledger", ("given_up_ranges",), revision=1, take=_give_up),
        Following("accepted_ranges", "manifests", ("accepted_ranges",), revision=1, take=_accept),
        Snapshot("gaps", _RANGES, ("gaps", "completeness"), revision=3, frames=_frames),
    ),
)
