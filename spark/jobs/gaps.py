"""`gaps`: landed_ranges, ledger, manifests, gateway_status, outages -> gaps, completeness, completeness_hourly.

What has landed (job `messages`) and what was given up is kept as ranges of sequences. These stay as few as there are
addresses and holes, however much lands. What is missing then follows from the ranges and from the statements of the
gateways, a row an hour and address. A statement of which all has landed is settled: its line stays as it is, and its
sequences are one more range. So a pass judges only the other statements, however many there have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas, session
from spark.jobs.outcome import Job
from spark.jobs.snapshot import SnapshotStep
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import Lake
from spark.sink import Sink
from spark.transforms import completeness, ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FACTS: Final = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges")
_INPUTS: Final = (*_FACTS, "gateway_backlog", "outages")


def _give_up(batch: MicroBatch) -> None:
    fresh = batch.rows.select(*schemas.GIVEN_UP_RANGES.columns.names)
    batch.rewrite("given_up_ranges", lambda there: ranges.given_up(there.unionByName(fresh)))


def _report(batch: MicroBatch) -> None:
    batch.fold("gateway_backlog", completeness.backlog(batch.rows), completeness.BACKLOG_FOLD)


def _state(batch: MicroBatch) -> None:
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

    Their lines are written first, then their ranges, then the statements that stay open. Interrupted, all of it is done
    again with the same result. Rows that another pass has written to one of the tables since then are not overwritten.
    """
    opened, ranged = lake.find("open_statements"), lake.find("settled_ranges")
    if opened is None or ranged is None:
        return
    settled = _settled(lake, {"open_statements": opened.version(), "settled_ranges": ranged.version()})
    if settled is None:
        return
    made_of = lake.lineage("open_statements", opened.version())
    Sink(lake, None, None).fold("completeness_hourly", settled.lines, completeness.LINE_FOLD)
    Sink(lake, None, None).overwrite("settled_ranges", settled.ranges, read=ranged)
    Sink(lake, None, made_of).overwrite("open_statements", settled.still_open, read=opened)


def _settled(lake: Lake, at: Mapping[str, int]) -> _Settled | None:
    known = {name: lake.read(name, at.get(name)) for name in _INPUTS}
    statements = session.kept(completeness.with_settled(known["open_statements"], known["landed_ranges"]))
    settled = statements.where("settled").drop("settled")
    if settled.isEmpty():
        return None
    nothing = {name: lake.nothing(name) for name in ("given_up_ranges", "gateway_backlog", "outages")}
    judged = completeness.judged(*(known | nothing | {"open_statements": settled}).values())
    lines = completeness.hourly(judged, settled=True).where(F.col("hour").isNotNull())
    there = known["settled_ranges"]
    joined = ranges.settled(there.unionByName(settled.select(*there.columns)))
    return _Settled(lines, joined, statements.where("NOT settled").drop("settled"))


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    # Kept in memory: the three results are parts of it.
    judged = session.kept(completeness.judged(*(lake.read(name) for name in _INPUTS)), at_once=False)
    return {
        "gaps": completeness.gaps(judged),
        "completeness_hourly": completeness.hourly(judged),
        "completeness": completeness.completeness(judged),
    }


JOB = Job(
    "gaps",
    "missing, explained and duplicate sequences of each address; accepted = landed + given up + waiting, by hour",
    (
        StreamStep("given_up_ranges", "ledger", ("given_up_ranges",), revision=1, take=_give_up),
        StreamStep("gateway_backlog", "gateway_status", ("gateway_backlog",), revision=1, take=_report),
        StreamStep(
            "open_statements",
            "manifests",
            ("completeness_hourly", "settled_ranges", "open_statements"),
            revision=1,
            take=_state,
            beside=("landed_ranges",),
        ),
        SnapshotStep(
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
