"""telemetry -> outages: when messages waited at their gateway, and when they arrived.

Each message of the backlog lane is an interval from its reception to its landing; an outage is the intervals that
overlap, or are a pause apart. Its drain is the part of it in which they landed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms import islands
from spark.transforms.times import seconds_between, with_trusted_reception

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAUSE_SECONDS = 60
"""Seconds after everything has landed in which a waiting message belongs to the same outage: links flap."""
_KEY = ("tenant", "gateway")


def outages(telemetry: DataFrame) -> DataFrame:
    """Return the outages among these rows, as in table `outages`.

    If a gateway's clock was wrong, the time of landing replaces that of reception, and the lag is unknown.
    """
    waited = telemetry.where(F.col("lane") == "backlog").select(*_KEY, "received_at", "ingested_at")
    rows = with_trusted_reception(waited)
    lag = F.when(~F.col("suspect"), seconds_between("received_at", "ingested_at"))
    # Messages received within a pause belong together in any case; grouping them first leaves few rows to sort.
    together = F.floor(F.unix_seconds("received_at") / PAUSE_SECONDS).alias("together")
    stretches = rows.groupBy(*_KEY, together).agg(
        F.min("received_at").alias("began"),
        F.max("received_at").alias("until"),
        F.min("ingested_at").alias("drain_began"),
        F.max("ingested_at").alias("drained"),
        F.count(F.lit(1)).alias("messages"),
        F.max(lag).alias("lag_max_s"),
    )
    return merge(stretches.drop("together"))


def merge(stretches: DataFrame) -> DataFrame:
    """Merge rows of table `outages` that belong to one outage."""
    whole = islands.merge(
        stretches.withColumn("over", F.greatest("until", "drained")),
        _KEY,
        ("began", "over"),
        F.expr(f"INTERVAL {PAUSE_SECONDS} SECONDS"),
        F.min("began").alias("began"),
        F.max("until").alias("until"),
        F.min("drain_began").alias("drain_began"),
        F.max("drained").alias("drained"),
        F.sum("messages").alias("messages"),
        F.max("lag_max_s").alias("lag_max_s"),
    )
    return whole.select(*schemas.OUTAGES.columns.names)
