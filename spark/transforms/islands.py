"""Stretches joined to islands. Islands add up: those of some rows and those of others, joined, are those of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def joined(
    stretches: DataFrame, key: Sequence[str], ends: tuple[str, str], reach: Column, *columns: Column
) -> DataFrame:
    """Stretches of a key that overlap or are at most `reach` apart as one; of each its key and `columns`, aggregates.

    `ends`: the columns with the first and the last of a stretch.
    """
    first, last = ends
    order = Window.partitionBy(*key).orderBy(first, last)
    before = F.max(last).over(order.rowsBetween(Window.unboundedPreceding, -1))
    # Taken from the first, not added to the last: a sequence may be the highest there is.
    starts = stretches.withColumn("starts", F.when(F.col(first) - reach > before, 1).otherwise(0))
    numbered = starts.withColumn("island", F.sum("starts").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    return numbered.groupBy(*key, "island").agg(*columns).drop("island")
