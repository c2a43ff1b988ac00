"""telemetry, ledger -> landed_ranges, given_up_ranges: which sequences have landed, and which were dropped.

A sequence is a dense counter from 0 per (tenant, gateway, epoch, address), so the landed ones show what is missing. The
rows are first gathered into 64-bit words (`bit_or` of each sequence's bit): exact, without sorting or comparing rows,
and with a 64th as many rows from there on. Ranges of parts, merged, are those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms import islands

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("tenant", "gateway", "epoch", "address")
_WORD_SHIFT = 6
_WORD_MASK = 63
_FULL_WORD = -1


def landed_ranges(telemetry: DataFrame) -> DataFrame:
    """Return the sequences of these rows as ranges, as in table `landed_ranges`."""
    bit = F.expr(f"shiftleft(1L, cast(sequence & {_WORD_MASK} as int))")
    words = telemetry.groupBy(*KEY, F.shiftright("sequence", _WORD_SHIFT).alias("word")).agg(
        F.bit_or(bit).alias("bits"), F.count(F.lit(1)).alias("rows")
    )
    return merge_landed(_named(_intervals(words)))


def merge_landed(ranges: DataFrame) -> DataFrame:
    """Merge ranges of table `landed_ranges` that touch or overlap."""
    merged = _merge(_plain(ranges), KEY, F.sum("rows").alias("rows"))
    return _named(merged).select(*schemas.LANDED_RANGES.columns.names)


def merge_given_up(ranges: DataFrame) -> DataFrame:
    """Merge ranges of the ledger by reason, as in table `given_up_ranges`."""
    return _named(_merge(_plain(ranges), (*KEY, "reason"))).select(*schemas.GIVEN_UP_RANGES.columns.names)


def merge_settled(ranges: DataFrame) -> DataFrame:
    """Merge ranges of table `settled_ranges` that touch or overlap."""
    return _named(_merge(_plain(ranges), KEY)).select(*schemas.SETTLED_RANGES.columns.names)


def _intervals(words: DataFrame) -> DataFrame:
    """Return words as closed intervals `first`..`last`: one for a full word, else one per sequence.

    The rows of a word are counted with its first interval: which sequence was repeated is unknown.
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


def _merge(ranges: DataFrame, key: Sequence[str], *others: Column) -> DataFrame:
    """Merge ranges that touch or overlap; `others`: aggregates of further columns."""
    ends = (F.min("first").alias("first"), F.max("last").alias("last"))
    return islands.merge(ranges, key, ("first", "last"), F.lit(1), *ends, *others)
