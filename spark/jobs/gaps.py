"""`gaps`: telemetry, ledger, manifests, gateway_status, outages -> ranges -> gaps, completeness, completeness_hourly.

What has landed and was given up is kept as ranges of sequences, which stay as few as there are addresses and holes
however much lands; each pass adds what is new to them. What is missing then follows from the ranges and from what the
gateways state, a row an hour and address. A statement of which all has landed is settled: its line stays as it is and
its sequences are one more range, so that a pass judges the others only, however many there have been.

On one machine all of it is done in this process (`spark.here`); on a cluster, and where ranges are many, by Spark. The
rule is the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from spark import gathered, schemas, session
from spark.here import completeness as completeness_here
from spark.here import parts
from spark.here import ranges as ranges_here
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import completeness, ranges
from spark.transforms.accounts import KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FACTS = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges")
_INPUTS = (*_FACTS, "gateway_backlog", "outages")
HERE_MAX: Final = 4_000_000
"""Ranges that are joined in this process, of a table and of what is new to it: 600 MB."""
JUDGED_MAX: Final = 500_000
"""Ranges and statements that are judged in this process: 5 s of one core, 400 MB."""


def _land(batch: Batch) -> None:
    found = _joined_here(batch, "landed_ranges", ranges_here.MESSAGE, ranges_here.landed, ranges_here.joined)
    if found is None:
        fresh = ranges.landed(batch.rows)
        found = ranges.joined(batch.lake.read("landed_ranges").unionByName(fresh)).coalesce(1)
    batch.overwrite("landed_ranges", found)


def _give_up(batch: Batch) -> None:
    names = schemas.GIVEN_UP_RANGES.columns.names
    found = _joined_here(batch, "given_up_ranges", names, ranges_here.given_up, ranges_here.given_up)
    if found is None:
        there = batch.lake.read("given_up_ranges")
        found = ranges.given_up(there.unionByName(batch.rows.select(*names))).coalesce(1)
    batch.overwrite("given_up_ranges", found)


def _joined_here(
    batch: Batch,
    output: str,
    names: Sequence[str],
    made: Callable[[pa.Table], pa.Table],
    joined: Callable[[pa.Table], pa.Table],
) -> pa.Table | None:
    """The ranges of a table and those `made` of these columns of the batch, `joined` in this process; None where Spark
    is to do it."""
    fresh = batch.here(names)
    if fresh is None or batch.lake.rows(output) > HERE_MAX:
        return None
    there = batch.lake.read_here(output, schemas.DERIVED[output].columns.names)
    return parts.summed(chain(there, map(made, fresh)), lambda part: part, joined, HERE_MAX)


def _report(batch: Batch) -> None:
    fresh = batch.here(completeness_here.STATUS)
    if fresh is None:
        batch.fold("gateway_backlog", completeness.backlog(batch.rows).coalesce(1), completeness.BACKLOG_FOLD)
    else:
        newest = pa.concat_tables(map(completeness_here.backlog, fresh))  # of each part one a gateway
        combined = completeness_here.backlogs
        batch.fold_here("gateway_backlog", combined(newest), combined, completeness.BACKLOG_FOLD)


def _state(batch: Batch) -> None:
    names = schemas.OPEN_STATEMENTS.columns.names
    fresh = batch.here(names)
    if fresh is None:
        batch.append("open_statements", batch.rows.select(*names))
    else:
        statements = gathered.Writer(batch.lake.at("open_statements"))
        for part in fresh:
            statements.add(part)
        batch.append("open_statements", statements)


class _Settled(NamedTuple):
    """What comes of the statements of which all has landed."""

    lines: DataFrame | pa.Table
    """Of table `completeness_hourly`."""
    ranges: DataFrame | pa.Table
    """All of table `settled_ranges`, with theirs."""
    still_open: DataFrame | pa.Table
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
    settled = (_settled_here if _is_judged_here(lake) else _settled_by_spark)(lake, at)
    if settled is None:
        return
    mark = Transaction(f"settle/{opened.id}/{landed.id}", opened.version + landed.version)
    _fold_lines(lake, settled.lines, mark)
    lake.overwrite("settled_ranges", settled.ranges, replace(mark, table=ranged.id, over=ranged.version), None)
    made_of = lake.provenance("open_statements", opened.version)
    mark_open = replace(mark, table=opened.id, over=opened.version)
    lake.overwrite("open_statements", settled.still_open, mark_open, made_of)


def _is_judged_here(lake: Lake) -> bool:
    """Whether this process judges the statements, on one machine where it has room for all there is of them."""
    return lake.here and sum(map(lake.rows, _FACTS)) <= JUDGED_MAX


def _settled_here(lake: Lake, at: Mapping[str, int]) -> _Settled | None:
    statements, landed, there = (_read_here(lake, name, version) for name, version in at.items())
    has_landed = pa.array(ranges_here.are_within(statements, landed))
    settled = statements.filter(has_landed)
    if not len(settled):
        return None
    known = {
        # What is of other addresses has no part in the lines of these.
        "landed_ranges": landed.join(settled.select(KEY), KEY, join_type="left semi"),
        "open_statements": settled,
        "settled_ranges": there.join(settled.select(KEY), KEY, join_type="left semi"),
    }
    nothing = {name: schemas.DERIVED[name].arrow.empty_table() for name in _INPUTS if name not in known}
    judged = completeness_here.judged(*((known | nothing)[name] for name in _INPUTS))
    lines = completeness_here.hourly(judged, settled=True)
    joined = ranges_here.settled(pa.concat_tables([there, settled.select(there.column_names)]))
    return _Settled(lines.filter(pc.is_valid(lines["hour"])), joined, statements.filter(pc.invert(has_landed)))


def _settled_by_spark(lake: Lake, at: Mapping[str, int]) -> _Settled | None:
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


def _fold_lines(lake: Lake, lines: DataFrame | pa.Table, mark: Transaction) -> None:
    name = "completeness_hourly"
    if isinstance(lines, pa.Table):
        if lake.fold_here(name, lines, completeness_here.lines, mark):
            return
        lines = lake.frame(name, lines)
    lake.fold(name, lines, completeness.LINE_FOLD, mark)


def _frames(lake: Lake) -> Mapping[str, DataFrame] | Mapping[str, pa.Table]:
    return _frames_here(lake) if _is_judged_here(lake) else _frames_by_spark(lake)


def _frames_here(lake: Lake) -> Mapping[str, pa.Table]:
    known = {name: _read_here(lake, name) for name in (*_FACTS, "gateway_backlog")}
    outages = lake.read_here("outages", completeness_here.GATEWAY)
    known["outages"] = pa.concat_tables(map(completeness_here.gateways, outages))
    judged = completeness_here.judged(*known.values())
    return {
        "gaps": completeness_here.gaps(judged),
        "completeness": completeness_here.completeness(judged),
        "completeness_hourly": completeness_here.hourly(judged),
    }


def _frames_by_spark(lake: Lake) -> Mapping[str, DataFrame]:
    # Kept in memory: the three results are parts of it.
    judged = session.kept(completeness.judged(*(lake.read(name) for name in _INPUTS)), at_once=False)
    return {
        "gaps": completeness.gaps(judged).coalesce(1),
        "completeness": completeness.completeness(judged).coalesce(1),
        "completeness_hourly": completeness.hourly(judged).coalesce(1),
    }


def _read_here(lake: Lake, name: str, version: int | None = None) -> pa.Table:
    """All of a table, in which texts are no dictionaries."""
    table = schemas.DERIVED[name]
    return pa.concat_tables(lake.read_here(name, table.columns.names, version)).cast(table.arrow)


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
