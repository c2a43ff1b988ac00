"""Merge intervals into islands. Merging is associative: islands of parts of the rows, merged, are those of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def merge(
    stretches: DataFrame, key: Sequence[str], ends: tuple[str, str], reach: Column, *columns: Column
) -> DataFrame:
    """Merge intervals of a key that overlap or are at most `reach` apart; `columns`: aggregates of each island.

    `ends`: the columns with the first and the last value of an interval.
    """
    first, last = ends
    order = Window.partitionBy(*key).orderBy(first, last)
    before = F.max(last).over(order.rowsBetween(Window.unboundedPreceding, -1))
    # Taken from the first, not added to the last: a sequence may be the highest there is.
    starts = stretches.withColumn("starts", F.when(F.col(first) - reach > before, 1).otherwise(0))
    numbered = starts.withColumn("island", F.sum("starts").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    return numbered.groupBy(*key, "island").agg(*columns).drop("island")
