"""`gaps`: telemetry, ledger, manifests, gateway_status -> ranges -> gaps, completeness, completeness_hourly.

What has landed and was given up is kept as ranges of sequences, which stay as few as there are addresses and holes
however much lands; each pass adds what is new to them. What is missing then follows from the ranges and from what the
gateways state, a row an hour and address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transforms import completeness, ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INPUTS = ("landed_ranges", "given_up_ranges", "manifests", "gateway_backlog", "throughput")


def _land(batch: Batch) -> None:
    fresh = ranges.landed(batch.rows)
    batch.overwrite("landed_ranges", ranges.joined(batch.lake.read("landed_ranges").unionByName(fresh)).coalesce(1))


def _give_up(batch: Batch) -> None:
    there = batch.lake.read("given_up_ranges")
    batch.overwrite(
        "given_up_ranges", ranges.given_up(there.unionByName(batch.rows.select(*there.columns))).coalesce(1)
    )


def _report(batch: Batch) -> None:
    batch.fold("gateway_backlog", completeness.backlog(batch.rows).coalesce(1), completeness.BACKLOG_FOLD)


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    # Kept in memory: the three results are parts of it.
    judged = completeness.judged(*(lake.read(name) for name in _INPUTS)).localCheckpoint(eager=False)
    return {
        "gaps": completeness.gaps(judged).coalesce(1),
        "completeness": completeness.completeness(judged).coalesce(1),
        "completeness_hourly": completeness.hourly(judged).coalesce(1),
    }


JOB = Job(
    "gaps",
    "missing, explained and duplicate sequences of each address; accepted = landed + given up + waiting, by hour",
    (
        Following("landed_ranges", "telemetry", ("landed_ranges",), revision=1, take=_land),
        Following("given_up_ranges", "ledger", ("given_up_ranges",), revision=1, take=_give_up),
        Following("gateway_backlog", "gateway_status", ("gateway_backlog",), revision=1, take=_report),
        Snapshot("gaps", _INPUTS, ("gaps", "completeness_hourly", "completeness"), revision=4, frames=_frames),
    ),
)
