"""landed_ranges, given_up_ranges, open_statements, settled_ranges, gateway_backlog -> gaps, completeness,
completeness_hourly.

One partition of Spark has all of an address, sorted, and `judgement.judge` judges it in plain Python: ranges and
statements are few, and the rule is one that another program keeps as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.judgement import Circumstances, Line, Statement, judge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("tenant", "gateway", "epoch", "address")
_GATEWAY = ("tenant", "gateway")
_LANDED, _GIVEN_UP, _STATED, _SETTLED = "landed", "given up", "stated", "settled"
_FACTS: Mapping[str, str] = {
    **dict.fromkeys(KEY, "string"),
    "fact": "string",
    "first": "bigint",
    "last": "bigint",
    "rows": "bigint",
    "reason": "string",
    "hour": "timestamp",
    "until": "timestamp",
    "ingested_at": "timestamp",
    "waiting": "bigint",
    "said_at": "timestamp",
    "lanes": "boolean",
}
_JUDGED = (
    ("kind", "string"),
    ("hour", "timestamp"),
    ("first_sequence", "bigint"),
    ("last_sequence", "bigint"),
    ("accepted", "bigint"),
    ("landed", "bigint"),
    ("given_up", "string"),
    ("explained", "bigint"),
    ("waiting", "bigint"),
    ("unexplained", "bigint"),
    ("rows", "bigint"),
    ("distinct_sequences", "bigint"),
    ("reason", "string"),
)
_JUDGED_SQL = ", ".join(f"{name} {kind}" for name, kind in (*((name, "string") for name in KEY), *_JUDGED))
_ARROW = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
_JUDGED_ARROW = pa.schema([*((name, pa.string()) for name in KEY), *((name, _ARROW[kind]) for name, kind in _JUDGED)])
_LINE, _GAP, _ADDRESS = "line", "gap", "address"

BACKLOG_FOLD = {
    "waiting": "CASE WHEN new.said_at >= old.said_at THEN new.waiting ELSE old.waiting END",
    "said_at": "greatest(old.said_at, new.said_at)",
}
"""How a row of table `gateway_backlog` and one of further statuses become one."""


def backlog(statuses: DataFrame) -> DataFrame:
    """The newest status of each gateway that says how much waits there, as table `gateway_backlog` has it."""
    said = statuses.where(F.col("backlog_messages").isNotNull())
    newest = said.groupBy(*_GATEWAY).agg(
        F.max_by("backlog_messages", "ingested_at").alias("waiting"), F.max("ingested_at").alias("said_at")
    )
    return newest.select(*schemas.GATEWAY_BACKLOG.columns.names)


LINE_FOLD = {
    name: f"new.{name}"
    for name in schemas.COMPLETENESS_HOURLY.columns.names
    if name not in (*schemas.COMPLETENESS_HOURLY.keys, *schemas.COMPLETENESS_HOURLY.partition_by)
}
"""How a line of table `completeness_hourly` and the same one, written again, become one."""


def with_settled(statements: DataFrame, landed: DataFrame) -> DataFrame:
    """Rows of table `open_statements`, and whether all of each has landed (`settled`)."""
    there = landed.select(*KEY, F.col("first_sequence").alias("from"), F.col("last_sequence").alias("upto"))
    within = [statements[name].eqNullSafe(there[name]) for name in KEY]
    within += [there["from"] <= statements["first_sequence"], statements["last_sequence"] <= there["upto"]]
    found = statements.join(there, within, "left")
    return found.select(*(statements[name] for name in statements.columns), there["from"].isNotNull().alias("settled"))


def judged(
    landed: DataFrame,
    given_up: DataFrame,
    statements: DataFrame,
    settled: DataFrame,
    backlog: DataFrame,
    outages: DataFrame,
) -> DataFrame:
    """Every address held against what its gateway states: lines, gaps and sums, which `gaps`, `completeness` and
    `hourly` divide. A gateway of which messages waited has a lane for them."""
    circumstances = backlog.join(
        outages.select(*_GATEWAY, F.lit(True).alias("lanes")).distinct(),
        list(_GATEWAY),
        "full_outer",
    )
    facts = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True),
        (
            _facts(landed, _LANDED, "rows"),
            _facts(given_up, _GIVEN_UP, "reason"),
            _facts(statements, _STATED, "hour", "until", "ingested_at"),
            _facts(settled, _SETTLED),
        ),
    )
    whole = facts.join(circumstances, list(_GATEWAY), "left")
    columns: list[Column] = [F.col(name).cast(kind) for name, kind in _FACTS.items()]
    by_address = whole.select(*columns).repartition(*KEY).sortWithinPartitions(*KEY, "fact", "reason", "first")
    return by_address.mapInArrow(_judge_all, _JUDGED_SQL)


def gaps(judged: DataFrame) -> DataFrame:
    """Sequences that were given up or that nothing explains, as table `gaps` has them."""
    found = judged.where(F.col("kind") == _GAP).withColumns(
        {
            "missing": F.col("last_sequence") - F.col("first_sequence") + 1,
            "explained": F.col("reason").isNotNull(),
        }
    )
    return found.select(*schemas.GAPS.columns.names)


def hourly(judged: DataFrame, *, settled: bool = False) -> DataFrame:
    """What became of the messages of each statement, as table `completeness_hourly` has it."""
    found = judged.where(F.col("kind") == _LINE).withColumn("settled", F.lit(settled))
    return found.select(*schemas.COMPLETENESS_HOURLY.columns.names)


def completeness(judged: DataFrame) -> DataFrame:
    """One row per address, as table `completeness` has them."""
    lines = F.col("kind") == _LINE
    unstated = F.when(lines & F.col("hour").isNull(), F.col("accepted"))
    nothing = F.lit(0).cast("bigint")
    sums = (
        judged.where(lines | (F.col("kind") == _ADDRESS))
        .groupBy(*KEY)
        .agg(
            F.min("first_sequence").alias("first_sequence"),
            F.max("last_sequence").alias("last_sequence"),
            *(
                F.coalesce(F.sum(name), nothing).alias(name)
                for name in ("accepted", "landed", "explained", "waiting", "unexplained", "rows", "distinct_sequences")
            ),
            F.coalesce(F.sum(unstated), nothing).alias("unstated"),
        )
    )
    return sums.withColumns(
        {
            "missing": F.col("accepted") - F.col("landed"),
            "duplicates": F.col("rows") - F.col("distinct_sequences"),
        }
    ).select(*schemas.COMPLETENESS.columns.names)


def _facts(rows: DataFrame, fact: str, *more: str) -> DataFrame:
    return rows.select(
        *KEY,
        F.lit(fact).alias("fact"),
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        *more,
    )


# --- in a worker: rows of an address stand together -----------------------------------------------------------------


class _Fact(NamedTuple):
    """A row of `_FACTS`."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    fact: str
    first: int
    last: int
    rows: int | None
    reason: str | None
    hour: datetime | None
    until: datetime | None
    ingested_at: datetime | None
    waiting: int | None
    said_at: datetime | None
    lanes: bool | None


def _judge_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    facts = (
        _Fact(*row) for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for key, of_address in groupby(facts, key=lambda fact: fact[: len(KEY)]):
        rows = [dict(zip(KEY, key, strict=True)) | row for row in _rows(list(of_address))]
        yield pa.RecordBatch.from_pylist(rows, schema=_JUDGED_ARROW)


def _rows(facts: list[_Fact]) -> Iterator[dict[str, Any]]:
    """The rows of one address: a line a statement, the gaps, and what it has in all."""
    landed = [fact for fact in facts if fact.fact == _LANDED]
    settled = [(fact.first, fact.last) for fact in facts if fact.fact == _SETTLED]
    all_there = sum(last + 1 - first for first, last in settled)
    one = facts[0]
    lines = judge(
        [(fact.first, fact.last) for fact in landed],
        [(fact.first, fact.last, fact.reason or "") for fact in facts if fact.fact == _GIVEN_UP],
        [
            Statement(fact.hour, fact.until or fact.hour, fact.first, fact.last, fact.ingested_at)
            for fact in facts
            if fact.fact == _STATED and fact.hour is not None and fact.ingested_at is not None
        ],
        Circumstances(one.waiting, one.said_at, one.lanes is True),
        settled,
    )
    for line in lines:
        yield _line(line)
        for first, last, reason in line.gaps:
            yield {"kind": _GAP, "first_sequence": first, "last_sequence": last, "reason": reason}
    yield {
        "kind": _ADDRESS,
        "accepted": all_there,
        "landed": all_there,
        "rows": sum(fact.rows or 0 for fact in landed),
        "distinct_sequences": sum(fact.last + 1 - fact.first for fact in landed),
        "first_sequence": min(fact.first for fact in facts),
        "last_sequence": max(fact.last for fact in facts),
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "kind": _LINE,
        "hour": line.hour,
        "first_sequence": line.first,
        "last_sequence": line.last,
        "accepted": line.accepted,
        "landed": line.landed,
        "given_up": json.dumps(line.given_up, sort_keys=True),
        "explained": sum(line.given_up.values()),
        "waiting": line.waiting,
        "unexplained": line.unexplained,
    }
