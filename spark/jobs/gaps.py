"""`gaps`: landed_ranges, ledger, manifests, gateway_status, outages -> gaps, completeness, completeness_hourly.

Landed (job `messages`) and dropped sequences are kept as ranges. There are as many of these as addresses and holes,
however much lands. What is missing follows from the ranges and the statements of the gateways, one per hour and
address. A statement that has landed completely is settled: its row no longer changes, and its sequences become
one more range. So a pass judges only the other statements, however many there have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas, session
from spark.jobs.job import AnalyticsJob
from spark.jobs.snapshot import SnapshotStep
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import SparkLake
from spark.sink import Sink
from spark.transforms import completeness, ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FACTS: Final = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges")
_INPUTS: Final = (*_FACTS, "gateway_backlog", "outages")


def _add_given_up(batch: MicroBatch) -> None:
    fresh = batch.rows.select(*schemas.GIVEN_UP_RANGES.columns.names)
    batch.rewrite("given_up_ranges", lambda old: ranges.merge_given_up(old.unionByName(fresh)))


def _add_status(batch: MicroBatch) -> None:
    batch.fold("gateway_backlog", completeness.backlog(batch.rows), completeness.BACKLOG_FOLD)


def _add_statements(batch: MicroBatch) -> None:
    batch.append("open_statements", batch.rows.select(*schemas.OPEN_STATEMENTS.columns.names))


class _SettledStatements(NamedTuple):
    """Rows that result from statements that have landed completely."""

    lines: DataFrame
    """Rows of table `completeness_hourly`."""
    ranges: DataFrame
    """All rows of table `settled_ranges`, including theirs."""
    still_open: DataFrame
    """The other statements."""


def _settle(lake: SparkLake) -> None:
    """Move the statements that have landed completely out of the open ones.

    Their rows are written first, then their ranges, then the statements that stay open. After an interruption all of it
    is done again with the same result. Rows that another pass has written to one of the tables since are not
    overwritten.
    """
    opened, ranged = lake.find("open_statements"), lake.find("settled_ranges")
    if opened is None or ranged is None:
        return
    settled = _compute_settled(lake, {"open_statements": opened.version(), "settled_ranges": ranged.version()})
    if settled is None:
        return
    made_of = lake.lineage("open_statements", opened.version())
    Sink(lake, None, None).fold("completeness_hourly", settled.lines, completeness.LINE_FOLD)
    Sink(lake, None, None).overwrite("settled_ranges", settled.ranges, read=ranged)
    Sink(lake, None, made_of).overwrite("open_statements", settled.still_open, read=opened)


def _compute_settled(lake: SparkLake, at: Mapping[str, int]) -> _SettledStatements | None:
    known = {name: lake.read(name, at.get(name)) for name in _INPUTS}
    statements = session.checkpoint(completeness.mark_settled(known["open_statements"], known["landed_ranges"]))
    settled = statements.where("settled").drop("settled")
    if settled.isEmpty():
        return None
    empty = {name: lake.empty(name) for name in ("given_up_ranges", "gateway_backlog", "outages")}
    judged = completeness.judge(*(known | empty | {"open_statements": settled}).values())
    lines = completeness.hourly(judged, settled=True).where(F.col("hour").isNotNull())
    old = known["settled_ranges"]
    joined = ranges.merge_settled(old.unionByName(settled.select(*old.columns)))
    return _SettledStatements(lines, joined, statements.where("NOT settled").drop("settled"))


def _frames(lake: SparkLake) -> Mapping[str, DataFrame]:
    # Kept in memory: the three results are parts of it.
    judged = session.checkpoint(completeness.judge(*(lake.read(name) for name in _INPUTS)), at_once=False)
    return {
        "gaps": completeness.gaps(judged),
        "completeness_hourly": completeness.hourly(judged),
        "completeness": completeness.completeness(judged),
    }


JOB = AnalyticsJob(
    "gaps",
    "missing, explained and duplicate sequences of each address; accepted = landed + discarded + waiting, by hour",
    (
        StreamStep("given_up_ranges", "ledger", ("given_up_ranges",), revision=1, process=_add_given_up),
        StreamStep("gateway_backlog", "gateway_status", ("gateway_backlog",), revision=1, process=_add_status),
        StreamStep(
            "open_statements",
            "manifests",
            ("completeness_hourly", "settled_ranges", "open_statements"),
            revision=1,
            process=_add_statements,
            companions=("landed_ranges",),
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
