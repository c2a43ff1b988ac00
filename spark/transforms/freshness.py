"""telemetry -> gateway_freshness: age of the newest data, and time from the device to the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.times import seconds_between, with_trusted_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE_SECONDS = 60
"""A row is late if it took longer than this to the lake, or came over the backlog lane."""
_LAGS = "coalesce(kll_sketch_merge_double(old.lags, new.lags), old.lags, new.lags)"
FOLD = {
    "first_event_time": "least(old.first_event_time, new.first_event_time)",
    "last_event_time": "greatest(old.last_event_time, new.last_event_time)",
    "last_ingested_at": "greatest(old.last_ingested_at, new.last_ingested_at)",
    "rows": "old.rows + new.rows",
    "late_rows": "old.late_rows + new.late_rows",
    "late_share": "(old.late_rows + new.late_rows) / (old.rows + new.rows)",
    "suspect_rows": "old.suspect_rows + new.suspect_rows",
    "lag_p50_s": f"kll_sketch_get_quantile_double({_LAGS}, 0.5D)",
    "lag_p95_s": f"kll_sketch_get_quantile_double({_LAGS}, 0.95D)",
    "lag_max_s": "greatest(old.lag_max_s, new.lag_max_s)",
    "lags": _LAGS,
}
"""Combines a row of the table with one of further messages: SQL over `old` and `new`, by column."""


def freshness(telemetry: DataFrame) -> DataFrame:
    """Return one row per gateway (`device` null) and one per device of it, as in table `gateway_freshness`.

    Lag is ingestion minus event time in seconds, for rows with a plausible clock; null if there are none.
    """
    rows = with_trusted_times(telemetry.select("tenant", "gateway", "device", "event_time", "ingested_at", "lane"))
    lag = F.when(~F.col("suspect"), seconds_between("event_time", "ingested_at"))
    rows = rows.withColumn("lag", lag).withColumn(
        "late", (F.col("lane") == "backlog") | (F.coalesce("lag", F.lit(0.0)) > LATE_SECONDS)
    )
    grouped = rows.groupingSets([["tenant", "gateway"], ["tenant", "gateway", "device"]], "tenant", "gateway", "device")
    summed = grouped.agg(
        F.min("event_time").alias("first_event_time"),
        F.max("event_time").alias("last_event_time"),
        F.max("ingested_at").alias("last_ingested_at"),
        F.count(F.lit(1)).alias("rows"),
        F.count_if("late").alias("late_rows"),
        F.count_if("suspect").alias("suspect_rows"),
        F.when(F.count("lag") > 0, F.kll_sketch_agg_double("lag")).alias("lags"),
        F.max("lag").alias("lag_max_s"),
    )
    columns = {
        "late_share": F.col("late_rows") / F.col("rows"),
        "lag_p50_s": F.kll_sketch_get_quantile_double("lags", F.lit(0.5)),
        "lag_p95_s": F.kll_sketch_get_quantile_double("lags", F.lit(0.95)),
    }
    return summed.withColumns(columns).select(*schemas.GATEWAY_FRESHNESS.columns.names)
