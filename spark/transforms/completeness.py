"""landed_ranges, given_up_ranges, open_statements, settled_ranges, gateway_backlog -> gaps, completeness,
completeness_hourly.

One partition of Spark has everything about an address, sorted, and `accounts.accounts` judges it in plain Python:
ranges and statements are few, and another program applies the same rule.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.kernels import accounts
from spark.kernels.accounts import KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_GATEWAY = ("tenant", "gateway")
_ACCOUNTS_SQL = ", ".join(f"{name} {kind}" for name, kind in accounts.ACCOUNTS.items())

BACKLOG_FOLD = {
    "waiting": "CASE WHEN new.said_at >= old.said_at THEN new.waiting ELSE old.waiting END",
    "said_at": "greatest(old.said_at, new.said_at)",
}
"""Combines a row of table `gateway_backlog` with one of further statuses."""


def backlog(statuses: DataFrame) -> DataFrame:
    """Return the newest status of each gateway that reports its backlog, as in table `gateway_backlog`."""
    reported = statuses.where(F.col("backlog_messages").isNotNull())
    newest = reported.groupBy(*_GATEWAY).agg(
        F.max_by("backlog_messages", "ingested_at").alias("waiting"), F.max("ingested_at").alias("said_at")
    )
    return newest.select(*schemas.GATEWAY_BACKLOG.columns.names)


LINE_FOLD = {
    name: f"new.{name}"
    for name in schemas.COMPLETENESS_HOURLY.columns.names
    if name not in (*schemas.COMPLETENESS_HOURLY.keys, *schemas.COMPLETENESS_HOURLY.partition_by)
}
"""Combines a row of table `completeness_hourly` with the same one, written again."""


def mark_settled(statements: DataFrame, landed: DataFrame) -> DataFrame:
    """Return rows of table `open_statements`, with `settled`: whether all of each has landed."""
    ranges = landed.select(*KEY, F.col("first_sequence").alias("from"), F.col("last_sequence").alias("upto"))
    within = [statements[name].eqNullSafe(ranges[name]) for name in KEY]
    within += [ranges["from"] <= statements["first_sequence"], statements["last_sequence"] <= ranges["upto"]]
    found = statements.join(ranges, within, "left")
    return found.select(*(statements[name] for name in statements.columns), ranges["from"].isNotNull().alias("settled"))


def judge(
    landed: DataFrame,
    given_up: DataFrame,
    statements: DataFrame,
    settled: DataFrame,
    backlog: DataFrame,
    outages: DataFrame,
) -> DataFrame:
    """Return the account of every address, as `accounts.ACCOUNTS`; `gaps`, `hourly` and `completeness` divide it.

    A gateway with messages that waited has a separate lane for them.
    """
    circumstances = backlog.join(
        outages.select(*_GATEWAY, F.lit(True).alias("lanes")).distinct(),
        list(_GATEWAY),
        "full_outer",
    )
    facts = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True),
        (
            _facts(landed, accounts.LANDED, "rows"),
            _facts(given_up, accounts.GIVEN_UP, "reason"),
            _facts(statements, accounts.STATED, "hour", "until", "ingested_at"),
            _facts(settled, accounts.SETTLED),
        ),
    )
    whole = facts.join(circumstances, list(_GATEWAY), "left")
    columns: list[Column] = [F.col(name).cast(kind) for name, kind in accounts.FACTS.items()]
    by_address = whole.select(*columns).repartition(*KEY).sortWithinPartitions(*accounts.ORDER)
    return by_address.mapInArrow(accounts.accounts, _ACCOUNTS_SQL)


def gaps(judged: DataFrame) -> DataFrame:
    """Return the sequences that were dropped or that nothing explains, as in table `gaps`."""
    found = judged.where(F.col("kind") == accounts.GAP).withColumn("explained", F.col("reason").isNotNull())
    return found.select(*schemas.GAPS.columns.names)


def hourly(judged: DataFrame, *, settled: bool = False) -> DataFrame:
    """Return the balance of each statement, as in table `completeness_hourly`."""
    found = judged.where(F.col("kind") == accounts.LINE).withColumn("settled", F.lit(settled))
    return found.select(*schemas.COMPLETENESS_HOURLY.columns.names)


def completeness(judged: DataFrame) -> DataFrame:
    """Return one row per address, as in table `completeness`."""
    return judged.where(F.col("kind") == accounts.ADDRESS).select(*schemas.COMPLETENESS.columns.names)


def _facts(rows: DataFrame, fact: str, *more: str) -> DataFrame:
    return rows.select(
        *KEY,
        F.lit(fact).alias("fact"),
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        *more,
    )
