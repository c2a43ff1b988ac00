"""telemetry -> gateway_freshness: how old the newest data is, and how long data takes from the device to the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.times import seconds_between, with_trusted_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATE_SECONDS = 60
"""A row is late when it took longer than this to the lake, or came over the backlog lane."""
_PERCENTILE_ACCURACY = 1_000
"""Of `percentile_approx`: relative rank error 1/1000, so a p95 lies between p94.9 and p95.1."""


def freshness(telemetry: DataFrame) -> DataFrame:
    """One row per gateway (`device` null) and one per device of it, as table `gateway_freshness` has them.

    Lag is ingestion minus event time in seconds, of rows whose clock is not suspect; null when there are none.
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
        F.percentile_approx("lag", [0.5, 0.95], _PERCENTILE_ACCURACY).alias("lags"),
        F.max("lag").alias("lag_max_s"),
    )
    # try_element_at: the percentiles of no rows at all are null, not an array of nulls.
    columns = {
        "late_share": F.col("late_rows") / F.col("rows"),
        "lag_p50_s": F.try_element_at("lags", F.lit(1)),
        "lag_p95_s": F.try_element_at("lags", F.lit(2)),
    }
    return summed.withColumns(columns).select(*schemas.GATEWAY_FRESHNESS.columns.names)
