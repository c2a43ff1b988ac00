"""readings -> rollup_1m, rollup_1h -> rollup_1d: statistics of each metric of each device by minute, hour and day.

Rows of one window can be added: `FOLD` combines two of them, of different readings, into that of all of them.
`revised_at` is the latest ingestion among the readings, not the time of the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.times import event_date, event_hour

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SERIES = ("tenant", "gateway", "device", "address", "metric")
_NEWEST = {"at": "last_at", "sequence": "last_sequence", "value": "last", "unit": "unit"}
"""Fields of the newest reading of a window, and their columns."""
_NEWER = "struct(new.last_at, new.last_sequence) >= struct(old.last_at, old.last_sequence)"
_SKETCH = "kll_sketch_merge_double(old.sketch, new.sketch)"
FOLD = {
    "count": "old.count + new.count",
    "min": "least(old.min, new.min)",
    "max": "greatest(old.max, new.max)",
    "sum": "old.sum + new.sum",
    "mean": "(old.sum + new.sum) / (old.count + new.count)",
    "last": f"if({_NEWER}, new.last, old.last)",
    "last_at": "greatest(old.last_at, new.last_at)",
    "last_sequence": f"if({_NEWER}, new.last_sequence, old.last_sequence)",
    "unit": f"if({_NEWER}, new.unit, old.unit)",
    "p50": f"kll_sketch_get_quantile_double({_SKETCH}, 0.5D)",
    "p95": f"kll_sketch_get_quantile_double({_SKETCH}, 0.95D)",
    "suspect": "old.suspect + new.suspect",
    "revised_at": "greatest(old.revised_at, new.revised_at)",
    "sketch": _SKETCH,
}
"""Combines a window of a table with one of further readings: SQL over `old` and `new`, by column."""


def by_minute(readings: DataFrame) -> DataFrame:
    """Return one row per series and minute with a numeric reading, as in table `rollup_1m`.

    `last` is the reading of the latest event time, and among those the one of the highest sequence.
    """
    return _finish(_windows(readings, "minute"), schemas.ROLLUP_1M)


def by_hour(readings: DataFrame) -> DataFrame:
    """Return one row per series and hour, as in table `rollup_1h`."""
    return _finish(_windows(readings, "hour"), schemas.ROLLUP_1H)


def by_day(hours: DataFrame) -> DataFrame:
    """Fold rows of `rollup_1h` into days (UTC), as in table `rollup_1d`."""
    return _finish(_widen(hours, "day"), schemas.ROLLUP_1D)


def _windows(readings: DataFrame, unit: str) -> DataFrame:
    found = (
        readings.where(F.col("value").isNotNull())
        .withColumn("window_start", F.date_trunc(unit, "event_time"))
        .groupBy(*_SERIES, "window_start")
        .agg(
            F.count("value").alias("count"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            F.sum("value").alias("sum"),
            _newest("event_time", "sequence", "value", "unit"),
            F.count_if("suspect").alias("suspect"),
            F.max("ingested_at").alias("revised_at"),
            F.kll_sketch_agg_double("value").alias("sketch"),
        )
    )
    return _with_last(found)


def _widen(windows: DataFrame, unit: str) -> DataFrame:
    found = (
        windows.withColumn("window_start", F.date_trunc(unit, "window_start"))
        .groupBy(*_SERIES, "window_start")
        .agg(
            F.sum("count").alias("count"),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            F.sum("sum").alias("sum"),
            _newest("last_at", "last_sequence", "last", "unit"),
            F.sum("suspect").alias("suspect"),
            F.max("revised_at").alias("revised_at"),
            F.kll_merge_agg_double("sketch").alias("sketch"),
        )
    )
    return _with_last(found)


def _newest(*columns: str) -> Column:
    """Return the highest of time, sequence, value and unit together.

    Spark hashes here because the row also has a sketch; without one it would sort for a maximum of several columns.
    """
    named = (F.col(column).alias(name) for column, name in zip(columns, _NEWEST, strict=True))
    return F.max(F.struct(*named)).alias("newest")


def _with_last(rolled: DataFrame) -> DataFrame:
    return rolled.withColumns({column: F.col(f"newest.{name}") for name, column in _NEWEST.items()})


def _finish(rolled: DataFrame, table: schemas.TableSchema) -> DataFrame:
    quantiles = F.kll_sketch_get_quantile_double("sketch", F.array(F.lit(0.5), F.lit(0.95)))
    columns = {
        "mean": F.col("sum") / F.col("count"),
        "p50": quantiles[0],
        "p95": quantiles[1],
        "event_date": event_date("window_start"),
        "event_hour": event_hour("window_start"),
    }
    return rolled.withColumns(columns).select(*table.columns.names)
