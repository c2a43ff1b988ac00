"""telemetry, ledger -> landed_ranges, given_up_ranges: which sequences are there, and which were given up.

A sequence is a dense counter from 0 per (tenant, gateway, epoch, address), so what is there says what is not. The rows
are first gathered into 64-bit words (`bit_or` of each sequence's bit): exact, without sorting or comparing rows, and a
64th as many rows from there on. Ranges add up: those of some rows and those of others make those of all.
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


def settled(ranges: DataFrame) -> DataFrame:
    """Ranges as in table `settled_ranges`, in which some may touch or overlap, as the fewest that cover the same."""
    return _named(_merged(_plain(ranges), KEY)).select(*schemas.SETTLED_RANGES.columns.names)


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
    ends = (F.min("first").alias("first"), F.max("last").alias("last"))
    return islands.joined(ranges, key, ("first", "last"), F.lit(1), *ends, *others)
