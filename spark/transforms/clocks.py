"""Correct stamps of a gateway with a wrong clock where the offset is known; otherwise wait for it.

Only the gateway's own stamp is considered here, not times of devices. A message from a gateway that did not know its
clock to be right (`clock_quality` `unknown`) is one of these:

- *measured*: its offset is known; the stamp plus the offset is its time (`clock_quality` becomes `measured`);
- *bounded*: its offset will never be known; its time is the one within the bounds nearest to the stamp, and suspect;
- *held*: its gateway has reported that its clock was off by more than `NEAR_SECONDS`, and not yet by how much; if only
  the stamp gives a time, the message is held for at most `HELD_HOURS_MAX`;
- otherwise the stamp is used as it is.

Sparkplug messages have times of their own and depend on the order of their stamps, so their readings are left as they
are. Delivery times are computed only for stamps that are right or were corrected.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.births import is_sparkplug

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEAR_SECONDS: Final = 60
"""A smaller offset is harmless: landing takes as long, and the window is the right one or the next."""
HELD_HOURS_MAX: Final = 24
"""Hours that a message is held after landing; then its stamp is used as it is.

A gateway without a time service never reports an offset, and its values are worth more than nothing.
"""
NOT_GOOD: Final = "unknown"
MEASURED: Final = "measured"
BOUNDED: Final = "bounded"
_STREAM: Final = ("tenant", "gateway", "epoch", "address")
_STRETCH: Final = ("tenant", "gateway", "boot", "stretch")


def now() -> datetime:
    """Return the reference for waiting times: the current time."""
    return datetime.now(UTC)


def correct_for_readings(telemetry: DataFrame, offsets: DataFrame, now: datetime) -> DataFrame:
    """Return `telemetry` with `received_at`, `event_time` and `clock_quality` as known now, and `held` (boolean).

    `offsets`: table `clock_offsets`. It may contain rows twice; a message has one row in the result.
    """
    rows = _correct(telemetry, offsets, ~is_sparkplug("address"))
    waits = F.col("ingested_at") > F.lit(now) - F.expr(f"INTERVAL {HELD_HOURS_MAX} HOURS")
    return rows.withColumn("held", F.col("wrong") & waits).drop("wrong")


def correct_for_delivery(telemetry: DataFrame, offsets: DataFrame) -> DataFrame:
    """Return `telemetry` for delivery times, Sparkplug's too; no message is held.

    A time that is unknown, or known only within bounds, is null: `received_at`, and `event_time` if that was the stamp.
    """
    rows = _correct(telemetry, offsets, F.lit(True))
    unknown = F.col("wrong") | (F.col("clock_quality") == BOUNDED)
    of_stamp = F.col("event_time") == F.col("received_at")
    return rows.withColumns(
        {
            "event_time": F.when(~(unknown & of_stamp), F.col("event_time")),
            "received_at": F.when(~unknown, F.col("received_at")),
        }
    ).drop("wrong")


def _correct(telemetry: DataFrame, offsets: DataFrame, of: Column) -> DataFrame:
    """Return stamps of the messages `of` as known now; `wrong` (boolean): the stamp is not reliable."""
    joined = telemetry.join(F.broadcast(_collect_offsets(offsets)), list(_STREAM), "left")
    joined = joined.join(F.broadcast(_find_wrong_gateways(offsets)), ["tenant", "gateway"], "left")
    unsure = (F.col("clock_quality") == NOT_GOOD) & of
    found = F.try_element_at(F.filter("ranges", _holds_message), F.lit(1))
    rows = joined.withColumn("found", F.when(unsure, found))
    low, high = F.col("found.low"), F.col("found.high")
    nearest = F.greatest(F.least(F.lit(0), high), low)  # null: unbounded
    off = F.when(F.col("found").isNotNull(), F.coalesce(F.when(low == high, low), nearest, F.lit(0)))
    moved = F.timestamp_micros(F.unix_micros("received_at") + off)
    known = F.col("found").isNotNull()
    late = F.abs(F.unix_micros("ingested_at") - F.unix_micros("received_at")) > F.lit(NEAR_SECONDS * 1_000_000)
    of_stamp = F.col("event_time") == F.col("received_at")
    quality = F.when(F.col("found.known") == MEASURED, F.lit(MEASURED)).otherwise(F.lit(BOUNDED))
    return rows.withColumns(
        {
            "wrong": F.coalesce(unsure & ~known & F.col("wrong") & late, F.lit(False)),
            "event_time": F.when(known & of_stamp, moved).otherwise(F.col("event_time")),
            "received_at": F.when(known, moved).otherwise(F.col("received_at")),
            "clock_quality": F.when(known, quality).otherwise(F.col("clock_quality")),
        }
    ).select(*telemetry.columns, "wrong")


def _collect_offsets(offsets: DataFrame) -> DataFrame:
    """Return for each address the known offsets of its messages, in column `ranges`."""
    about = offsets.where(F.col("address").isNotNull() & (F.col("known") != "not yet"))
    one = F.struct(
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        F.col("stamped_after").alias("after"),
        F.col("stamped_until").alias("until"),
        F.col("offset_low_us").alias("low"),
        F.col("offset_high_us").alias("high"),
        "known",
    )
    return about.groupBy(*_STREAM).agg(F.sort_array(F.collect_set(one)).alias("ranges"))


def _holds_message(one: Column) -> Column:
    """Return whether this range contains the row's message."""
    stamp, sequence = F.col("received_at"), F.col("sequence")
    stamped = (one["after"].isNull() | (stamp > one["after"])) & (one["until"].isNull() | (stamp <= one["until"]))
    return sequence.between(one["first"], one["last"]) & stamped


def _find_wrong_gateways(offsets: DataFrame) -> DataFrame:
    """Return gateways (`wrong`: true) with a wrong clock and messages of unknown offset."""
    away = F.lit(NEAR_SECONDS * 1_000_000)
    shows = F.abs(F.unix_micros("heard_at") - F.unix_micros("told_at")) > away
    was = F.coalesce(F.greatest(F.abs("offset_low_us"), F.abs("offset_high_us")) > away, F.lit(True))
    off = F.when(F.col("known") == "not yet", shows).otherwise(was)
    stretches = offsets.groupBy(*_STRETCH).agg(F.max("whole").alias("whole"), F.max(off).alias("off"))
    found = stretches.where("off AND NOT whole").select("tenant", "gateway").distinct()
    return found.withColumn("wrong", F.lit(True))
