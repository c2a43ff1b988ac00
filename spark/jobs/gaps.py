"""`gaps`: telemetry, ledger, manifests, gateway_status, outages -> ranges -> gaps, completeness, completeness_hourly.

What has landed and was given up is kept as ranges of sequences, which stay as few as there are addresses and holes
however much lands; each pass adds what is new to them. What is missing then follows from the ranges and from what the
gateways state, a row an hour and address. A statement of which all has landed is settled: its line stays as it is and
its sequences are one more range, so that a pass judges the others only, however many there have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas, session
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import completeness, ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FACTS = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges")
_INPUTS = (*_FACTS, "gateway_backlog", "outages")


def _land(batch: Batch) -> None:
    fresh = ranges.landed(batch.rows)
    found = ranges.joined(batch.lake.read("landed_ranges").unionByName(fresh))
    batch.overwrite("landed_ranges", found.coalesce(1))


def _give_up(batch: Batch) -> None:
    there = batch.lake.read("given_up_ranges")
    fresh = batch.rows.select(*schemas.GIVEN_UP_RANGES.columns.names)
    batch.overwrite("given_up_ranges", ranges.given_up(there.unionByName(fresh)).coalesce(1))


def _report(batch: Batch) -> None:
    batch.fold("gateway_backlog", completeness.backlog(batch.rows).coalesce(1), completeness.BACKLOG_FOLD)


def _state(batch: Batch) -> None:
    batch.append("open_statements", batch.rows.select(*schemas.OPEN_STATEMENTS.columns.names))


class _Settled(NamedTuple):
    """What comes of the statements of which all has landed."""

    lines: DataFrame
    """Of table `completeness_hourly`."""
    ranges: DataFrame
    """All of table `settled_ranges`, with theirs."""
    still_open: DataFrame
    """The other statements."""


def _settle(lake: Lake) -> None:
    """Take the statements of which all has landed from the open ones.

    Their lines are written first, then their ranges: each of the three says the same again when it is done again. What
    another pass has written to a table since it was read here is not overwritten.
    """
    opened, landed, ranged = (lake.state(name) for name in ("open_statements", "landed_ranges", "settled_ranges"))
    if opened is None or landed is None or ranged is None:
        return
    at = {"open_statements": opened.version, "landed_ranges": landed.version, "settled_ranges": ranged.version}
    settled = _settled(lake, at)
    if settled is None:
        return
    mark = Transaction(f"settle/{opened.id}/{landed.id}", opened.version + landed.version)
    lake.fold("completeness_hourly", settled.lines, completeness.LINE_FOLD, mark)
    lake.overwrite("settled_ranges", settled.ranges, replace(mark, table=ranged.id, over=ranged.version), None)
    made_of = lake.provenance("open_statements", opened.version)
    mark_open = replace(mark, table=opened.id, over=opened.version)
    lake.overwrite("open_statements", settled.still_open, mark_open, made_of)


def _settled(lake: Lake, at: Mapping[str, int]) -> _Settled | None:
    known = {name: lake.read(name, at.get(name)) for name in _INPUTS}
    statements = session.kept(completeness.with_settled(known["open_statements"], known["landed_ranges"]))
    settled = statements.where("settled").drop("settled")
    if settled.isEmpty():
        return None
    nothing = {name: known[name].limit(0) for name in ("given_up_ranges", "gateway_backlog", "outages")}
    judged = completeness.judged(*(known | nothing | {"open_statements": settled}).values())
    lines = completeness.hourly(judged, settled=True).where(F.col("hour").isNotNull())
    there = known["settled_ranges"]
    joined = ranges.settled(there.unionByName(settled.select(*there.columns)))
    still_open = statements.where("NOT settled").drop("settled")
    return _Settled(lines.coalesce(1), joined.coalesce(1), still_open.coalesce(1))


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    # Kept in memory: the three results are parts of it.
    judged = session.kept(completeness.judged(*(lake.read(name) for name in _INPUTS)), at_once=False)
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
        Following(
            "open_statements",
            "manifests",
            ("completeness_hourly", "settled_ranges", "open_statements"),
            revision=1,
            take=_state,
            beside=("landed_ranges",),
        ),
        Snapshot(
            "gaps",
            _INPUTS,
            ("gaps", "completeness_hourly", "completeness"),
            revision=5,
            frames=_frames,
            replaces={"completeness_hourly": ("settled", "false")},
            prepare=_settle,
        ),
    ),
)
