"""telemetry -> throughput: rows received at the gateway and rows landed in the lake, by time bucket.

The difference of the two running sums is the backlog of a gateway at that moment. During an outage rows are received
and none lands; during the drain after it more land than are received. Every row is counted once in each role, so both
sums equal the rows of `telemetry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms.times import event_date, seconds_between, with_trusted_reception

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET_SECONDS = (1, 2, 10, 30, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
"""Bucket widths, each a multiple of the one before: buckets are merged when a lake outgrows them.

Details of single hours stay in `delivery_slo` and `outages`.
"""
BUCKETS_MAX = 1_200
"""Buckets over the whole span, up to 23 years: about as many points as a plot can show."""
_KEYS = ("tenant", "gateway", "lane")
FOLD = {
    "bucket_s": "old.bucket_s",
    "received": "old.received + new.received",
    "ingested": "old.ingested + new.ingested",
    "lag_max_s": "greatest(old.lag_max_s, new.lag_max_s)",
}
"""Combines a bucket of the table with one of further messages: SQL over `old` and `new`, by column."""


def bucket_seconds(span_s: float) -> int:
    """Return the narrowest bucket that divides `span_s` seconds into at most `BUCKETS_MAX`; a week at most."""
    for width in BUCKET_SECONDS:
        if span_s <= width * BUCKETS_MAX:
            return width
    return BUCKET_SECONDS[-1]


class Reach(NamedTuple):
    """Time that the buckets of a table and of further messages have to cover.

    `span_s`  seconds from the first bucket, or reception, to the last landing.
    `width_s` seconds of a bucket of the table; None while it is empty.
    `waited`  messages that came over the backlog lane.
    """

    span_s: float
    width_s: int | None
    waited: int


def find_reach(telemetry: DataFrame, table: DataFrame) -> Reach:
    """Return the reach of these messages and of table `throughput`, in one query."""
    fresh = _with_trusted_reception(telemetry).agg(
        F.min(F.unix_micros("received_at")).alias("first"),
        F.max(F.unix_micros("ingested_at")).alias("last"),
        F.count_if(F.col("lane") == "backlog").alias("waited"),
    )
    known = table.agg(F.min(F.unix_micros("bucket")).alias("since"), F.max("bucket_s").alias("width_s"))
    row = fresh.crossJoin(known).first()
    if row is None or row["last"] is None:
        return Reach(0.0, row["width_s"] if row is not None else None, 0)
    first = min(at for at in (row["first"], row["since"]) if at is not None)
    return Reach((row["last"] - first) / 1e6, row["width_s"], row["waited"])


def widen(buckets: DataFrame, width_s: int) -> DataFrame:
    """Merge rows of table `throughput` into buckets of `width_s` seconds."""
    summed = (
        buckets.withColumn("second", _bucket("bucket", width_s))
        .groupBy(*_KEYS, "second")
        .agg(
            F.sum("received").alias("received"),
            F.sum("ingested").alias("ingested"),
            F.max("lag_max_s").alias("lag_max_s"),
        )
    )
    return _finish(summed.withColumnRenamed("second", "bucket"), width_s)


def throughput(telemetry: DataFrame, width_s: int) -> DataFrame:
    """Return one row per gateway, lane and bucket of `width_s` seconds with rows, as in table `throughput`.

    `lag_max_s` is the longest delay to the lake among the rows that landed in the bucket.
    """
    lag = F.when(~F.col("suspect"), seconds_between("received_at", "ingested_at"))
    # First by both buckets at once: one scan, and few rows for the step that counts them in both roles.
    pairs = (
        _with_trusted_reception(telemetry)
        .groupBy(*_KEYS, _bucket("received_at", width_s).alias("at"), _bucket("ingested_at", width_s).alias("landed"))
        .agg(F.count(F.lit(1)).alias("rows"), F.max(lag).alias("lag"))
    )
    nothing = F.lit(0).cast("bigint")
    roles = F.array(
        _role("at", received=F.col("rows"), ingested=nothing, lag=F.lit(None).cast("double")),
        _role("landed", received=nothing, ingested=F.col("rows"), lag=F.col("lag")),
    )
    summed = (
        pairs.select(*_KEYS, F.inline(roles)).groupBy(*_KEYS, "bucket").agg(*_sums(), F.max("lag").alias("lag_max_s"))
    )
    return _finish(summed, width_s)


def _finish(summed: DataFrame, width_s: int) -> DataFrame:
    buckets = summed.withColumns({"bucket": F.timestamp_seconds(F.col("bucket")), "bucket_s": F.lit(width_s)})
    return buckets.withColumn("event_date", event_date("bucket")).select(*schemas.THROUGHPUT.columns.names)


def _with_trusted_reception(telemetry: DataFrame) -> DataFrame:
    """Return all rows with a plausible reception: rows left out would be missing in the totals."""
    return with_trusted_reception(telemetry.select(*_KEYS, "received_at", "ingested_at"))


def _sums() -> tuple[Column, ...]:
    return F.sum("received").alias("received"), F.sum("ingested").alias("ingested")


def _bucket(column: str, width_s: int) -> Column:
    seconds = F.unix_seconds(F.col(column))
    return seconds - F.pmod(seconds, F.lit(width_s))


def _role(bucket: str, received: Column, ingested: Column, lag: Column) -> Column:
    return F.struct(
        F.col(bucket).alias("bucket"), received.alias("received"), ingested.alias("ingested"), lag.alias("lag")
    )
