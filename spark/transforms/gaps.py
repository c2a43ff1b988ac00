"""telemetry, ledger, manifests -> gaps and completeness: what is missing, explained, or there twice.

A sequence is a dense counter from 0 per (tenant, gateway, epoch, address), so what is there says what is not. The rows
are first gathered into 64-bit words (`bit_or` of each sequence's bit): exact, without sorting or comparing rows, and a
64th as many rows from there on. Everything after works on intervals.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("tenant", "gateway", "epoch", "address")
_WORD_SHIFT = 6
_WORD_MASK = 63
_FULL_WORD = -1
_START = 0
"""The first sequence of every address."""


def words(telemetry: DataFrame) -> DataFrame:
    """Per key and 64 sequences: `word` (sequence // 64), `bits` (which are there), `rows`, `first`, `last`."""
    bit = F.expr(f"shiftleft(1L, cast(sequence & {_WORD_MASK} as int))")
    return telemetry.groupBy(*KEY, F.shiftright("sequence", _WORD_SHIFT).alias("word")).agg(
        F.bit_or(bit).alias("bits"),
        F.count(F.lit(1)).alias("rows"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
    )


def missing(there: DataFrame, ledger: DataFrame, manifests: DataFrame) -> DataFrame:
    """The ranges that are missing from `words`, as table `gaps` has them.

    A range is explained as far as the ledger covers it. Sequences are expected from 0 (or from where the manifests
    start) up to the highest that rows, ledger or manifests tell of.
    """
    present = _intervals(there)
    given_up = _merged(ledger)
    accepted = manifests.groupBy(*KEY).agg(F.min("first_sequence").alias("from"), F.max("last_sequence").alias("upto"))
    reasons = given_up.drop("reason")
    ends = _ends([present, reasons], accepted)
    lost = _holes(present, ends)
    unexplained = _holes(present.unionByName(reasons), ends)
    explained = (
        lost.alias("l")
        .join(given_up.alias("g"), list(KEY))
        .select(
            *KEY,
            F.greatest("l.first", "g.first").alias("first"),
            F.least("l.last", "g.last").alias("last"),
            F.col("g.reason").alias("reason"),
        )
        .where(F.col("first") <= F.col("last"))
        .withColumn("explained", F.lit(True))
    )
    unexplained = unexplained.withColumns({"reason": F.lit(None).cast("string"), "explained": F.lit(False)})
    ranges = explained.unionByName(unexplained)
    return ranges.withColumns(
        {
            "missing": F.col("last") - F.col("first") + 1,
            "first_sequence": F.col("first"),
            "last_sequence": F.col("last"),
        }
    ).select(*schemas.GAPS.columns.names)


def completeness(there: DataFrame, gaps: DataFrame) -> DataFrame:
    """One row per address that has rows or gaps, as table `completeness` has them."""
    counted = there.groupBy(*KEY).agg(
        F.min("first").alias("row_first"),
        F.max("last").alias("row_last"),
        F.sum("rows").alias("rows"),
        F.sum(F.bit_count("bits")).alias("distinct_sequences"),
    )
    lost = gaps.groupBy(*KEY).agg(
        F.min("first_sequence").alias("gap_first"),
        F.max("last_sequence").alias("gap_last"),
        F.sum(F.when(F.col("explained"), F.col("missing")).otherwise(0)).alias("explained"),
        F.sum(F.when(F.col("explained"), 0).otherwise(F.col("missing"))).alias("unexplained"),
    )
    joined = counted.join(lost, list(KEY), "full_outer").na.fill(
        0, ["rows", "distinct_sequences", "explained", "unexplained"]
    )
    return joined.withColumns(
        {
            "first_sequence": F.least("row_first", "gap_first"),
            "last_sequence": F.greatest("row_last", "gap_last"),
            "missing": F.col("explained") + F.col("unexplained"),
            "duplicates": F.col("rows") - F.col("distinct_sequences"),
        }
    ).select(*schemas.COMPLETENESS.columns.names)


def _intervals(there: DataFrame) -> DataFrame:
    """`words` as closed intervals `first`..`last`: a full word is one, any other one a sequence of it."""
    base = F.shiftleft("word", _WORD_SHIFT)
    full = there.where(F.col("bits") == _FULL_WORD).select(*KEY, base.alias("first"), (base + _WORD_MASK).alias("last"))
    positions = F.expr(f"filter(sequence(0, {_WORD_MASK}), i -> (shiftright(bits, i) & 1L) = 1L)")
    single = there.where(F.col("bits") != _FULL_WORD).select(*KEY, "word", F.explode(positions).alias("position"))
    single = single.select(*KEY, (base + F.col("position")).alias("first")).withColumn("last", F.col("first"))
    return full.unionByName(single)


def _merged(ledger: DataFrame) -> DataFrame:
    """Ledger ranges without overlaps; where several touch, their reasons are listed."""
    ranges = ledger.select(*KEY, F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last"), "reason")
    apart = F.col("first") > F.coalesce(_last_before(), F.lit(-1)) + 1
    islands = ranges.withColumn("starts", F.when(apart, 1).otherwise(0))
    order = Window.partitionBy(*KEY).orderBy("first", "last")
    islands = islands.withColumn("island", F.sum("starts").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    reasons = F.array_join(F.sort_array(F.collect_set("reason")), ", ")
    merged = islands.groupBy(*KEY, "island").agg(
        F.min("first").alias("first"), F.max("last").alias("last"), reasons.alias("reason")
    )
    return merged.drop("island")


def _last_before() -> Column:
    """The highest `last` of the intervals that come before this one in order of `first`; null for the first."""
    order = Window.partitionBy(*KEY).orderBy("first", "last")
    return F.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))


def _ends(known: list[DataFrame], accepted: DataFrame) -> DataFrame:
    """Per key where sequences are expected to start and one past where they end, as two marker intervals."""
    union = reduce(lambda one, other: one.unionByName(other), known)
    reach = union.groupBy(*KEY).agg(F.min("first").alias("lowest"), F.max("last").alias("highest"))
    both = reach.join(accepted, list(KEY), "full_outer")
    start = F.least(F.coalesce("from", F.lit(_START)), "lowest")
    end = F.greatest("highest", "upto") + 1
    markers = F.array(
        F.struct((start - 1).alias("first"), (start - 1).alias("last")), F.struct(end.alias("first"), end.alias("last"))
    )
    return both.select(*KEY, F.inline(markers))


def _holes(there: DataFrame, ends: DataFrame) -> DataFrame:
    """What lies between the intervals of `there` and the markers of `ends`."""
    before = there.unionByName(ends).withColumn("before", _last_before())
    open_ = before.where(F.col("first") > F.col("before") + 1)
    return open_.select(*KEY, (F.col("before") + 1).alias("from"), (F.col("first") - 1).alias("upto")).select(
        *KEY, F.col("from").alias("first"), F.col("upto").alias("last")
    )
