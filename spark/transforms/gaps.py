"""telemetry, ledger, manifests -> ranges -> gaps and completeness: what is missing, explained, or there twice.

A sequence is a dense counter from 0 per (tenant, gateway, epoch, address), so what is there says what is not. The rows
are first gathered into 64-bit words (`bit_or` of each sequence's bit): exact, without sorting or comparing rows, and a
64th as many rows from there on. Everything after works on ranges, which add up: those of some rows and those of others
make those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def landed(telemetry: DataFrame) -> DataFrame:
    """The sequences of these rows as ranges, as table `landed_ranges` has them."""
    bit = F.expr(f"shiftleft(1L, cast(sequence & {_WORD_MASK} as int))")
    words = telemetry.groupBy(*KEY, F.shiftright("sequence", _WORD_SHIFT).alias("word")).agg(
        F.bit_or(bit).alias("bits"), F.count(F.lit(1)).alias("rows")
    )
    return joined(_named(_intervals(words)))


def joined(ranges: DataFrame) -> DataFrame:
    """Ranges as in table `landed_ranges`, in which some may touch or overlap, as the fewest that cover the same."""
    merged = _merged(_plain(ranges), KEY, F.sum("rows").alias("rows"))
    return _named(merged).select(*schemas.LANDED_RANGES.columns.names)


def given_up(ranges: DataFrame) -> DataFrame:
    """Ranges of the ledger as table `given_up_ranges` has them: by reason, without overlaps."""
    return _named(_merged(_plain(ranges), (*KEY, "reason"))).select(*schemas.GIVEN_UP_RANGES.columns.names)


def accepted(manifests: DataFrame) -> DataFrame:
    """From where to where gateways have accepted sequences, as table `accepted_ranges` has it."""
    ends = (F.min("first_sequence").alias("first_sequence"), F.max("last_sequence").alias("last_sequence"))
    return manifests.groupBy(*KEY).agg(*ends).select(*schemas.ACCEPTED_RANGES.columns.names)


def missing(there: DataFrame, given_up: DataFrame, accepted: DataFrame) -> DataFrame:
    """What is missing from `landed_ranges`, as table `gaps` has it.

    A range is explained as far as the ledger covers it. Sequences are expected from 0 (or from where the manifests
    start) up to the highest that rows, ledger or manifests tell of.
    """
    present = _plain(there).select(*KEY, "first", "last")
    reason = F.array_join(F.sort_array(F.collect_set("reason")), ", ").alias("reason")
    explained_by = _merged(_plain(given_up), KEY, reason)
    reasons = explained_by.drop("reason")
    ends = _ends([present, reasons], accepted.withColumnsRenamed({"first_sequence": "from", "last_sequence": "upto"}))
    lost = _holes(present, ends)
    unexplained = _holes(present.unionByName(reasons), ends)
    explained = (
        lost.alias("l")
        .join(explained_by.alias("g"), list(KEY))
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
        F.min("first_sequence").alias("row_first"),
        F.max("last_sequence").alias("row_last"),
        F.sum("rows").alias("rows"),
        F.sum(F.col("last_sequence") - F.col("first_sequence") + 1).alias("distinct_sequences"),
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


def _intervals(words: DataFrame) -> DataFrame:
    """Words as closed intervals `first`..`last`: a full word is one, any other one a sequence of it.

    The rows of a word stand with the first of its intervals: which of them a repeated one was is not known.
    """
    base = F.shiftleft("word", _WORD_SHIFT)
    whole = words.where(F.col("bits") == _FULL_WORD)
    full = whole.select(*KEY, base.alias("first"), (base + _WORD_MASK).alias("last"), "rows")
    positions = F.expr(f"filter(sequence(0, {_WORD_MASK}), i -> (shiftright(bits, i) & 1L) = 1L)")
    single = words.where(F.col("bits") != _FULL_WORD).select(
        *KEY, "word", (F.col("rows") - F.bit_count("bits")).alias("repeated"), F.posexplode(positions)
    )
    rows = F.when(F.col("pos") == 0, F.col("repeated") + 1).otherwise(1)
    single = single.select(*KEY, (base + F.col("col")).alias("first"), rows.alias("rows"))
    return full.unionByName(single.withColumn("last", F.col("first")))


def _plain(ranges: DataFrame) -> DataFrame:
    return ranges.withColumnsRenamed({"first_sequence": "first", "last_sequence": "last"})


def _named(ranges: DataFrame) -> DataFrame:
    return ranges.withColumnsRenamed({"first": "first_sequence", "last": "last_sequence"})


def _merged(ranges: DataFrame, key: Sequence[str], *others: Column) -> DataFrame:
    """Ranges that touch or overlap as one; `others`: what becomes of their further columns."""
    order = Window.partitionBy(*key).orderBy("first", "last")
    before = F.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.col("first") > F.coalesce(before, F.lit(-2)) + 1
    islands = ranges.withColumn("starts", F.when(apart, 1).otherwise(0))
    islands = islands.withColumn("island", F.sum("starts").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    ends = (F.min("first").alias("first"), F.max("last").alias("last"))
    return islands.groupBy(*key, "island").agg(*ends, *others).drop("island")


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
