"""telemetry -> delivery_slo: time of messages from the gateway to the lake, and how many meet the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.times import event_date, seconds_between, with_trusted_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET_SECONDS = 60
"""A message meets the target if it is in the lake within this time after its gateway received it."""
_WIDTHS = (("hour", 3_600), ("day", 86_400))
_TIMES = "coalesce(kll_sketch_merge_double(old.times, new.times), old.times, new.times)"
_QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
FOLD = {
    "messages": "old.messages + new.messages",
    "timed": "old.timed + new.timed",
    "within": "old.within + new.within",
    "within_share": "try_divide(old.within + new.within, old.timed + new.timed)",
    **{name: f"kll_sketch_get_quantile_double({_TIMES}, {share}D)" for name, share in _QUANTILES.items()},
    "max_s": "greatest(old.max_s, new.max_s)",
    "revised_at": "greatest(old.revised_at, new.revised_at)",
    "times": _TIMES,
}
"""Combines a row of the table with one of further messages: SQL over `old` and `new`, by column."""


def slo(telemetry: DataFrame) -> DataFrame:
    """Return one row per gateway and hour, and one per gateway and day, of reception, as in table `delivery_slo`.

    A message with an implausible stamp of its gateway counts for the hour it landed in, and has no delivery time.
    """
    rows = with_trusted_times(
        telemetry.select("tenant", "gateway", "ingested_at", F.col("received_at").alias("event_time"))
    )
    at = F.when(F.col("suspect"), F.col("ingested_at")).otherwise(F.col("event_time"))
    rows = rows.select(
        "tenant",
        "gateway",
        "ingested_at",
        F.when(~F.col("suspect"), seconds_between("event_time", "ingested_at")).alias("time_s"),
        F.explode(
            F.array(*(F.struct(F.lit(s).alias("width_s"), F.date_trunc(w, at).alias("start")) for w, s in _WIDTHS))
        ),
    )
    within = F.count_if(F.col("time_s") <= TARGET_SECONDS)
    summed = rows.groupBy("tenant", "gateway", "col.width_s", F.col("col.start").alias("window_start")).agg(
        F.count(F.lit(1)).alias("messages"),
        F.count("time_s").alias("timed"),
        within.alias("within"),
        F.max("time_s").alias("max_s"),
        F.max("ingested_at").alias("revised_at"),
        F.when(F.count("time_s") > 0, F.kll_sketch_agg_double("time_s")).alias("times"),
    )
    columns = {name: F.kll_sketch_get_quantile_double("times", F.lit(share)) for name, share in _QUANTILES.items()}
    columns |= {"within_share": F.try_divide("within", "timed"), "event_date": event_date("window_start")}
    return summed.withColumns(columns).select(*schemas.DELIVERY_SLO.columns.names)
