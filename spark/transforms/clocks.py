"""Stamps of a gateway whose clock was wrong: put right where it has told how far it was off, else waiting for that.

The gateway's own stamp is all that is looked at here; what a device says of time is its own. A message of which a
gateway did not know its clock to be right (`clock_quality` `unknown`) is one of these:

- its offset is *measured*: the stamp and the offset are its time (`clock_quality` becomes `measured`);
- its offset will *never* be known: the time between the bounds that is nearest to the stamp (`bounded`, and suspect);
- its gateway has said that its clock was off by more than `NEAR_SECONDS`, and not told all of it yet: where nothing but
  the stamp says when it was, the message is *held*, for `HELD_HOURS_MAX` at most;
- or nobody says more: the stamp, as it is.

Sparkplug messages have times of their own and go by the order of their stamps: their readings are left as they are.
How long messages took (`delivered`) is told of those only whose stamp is right, or was put right.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.births import is_sparkplug

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEAR_SECONDS: Final = 60
"""A clock that is off by less is near enough: a message takes as long to be landed, and the window it falls in is its
own or the next."""
HELD_HOURS_MAX: Final = 24
"""A held message is taken with its stamp as it is when its gateway has not told the time for so long after it landed:
one without a time service never will, and its values are worth more than nothing."""
NOT_GOOD: Final = "unknown"
MEASURED: Final = "measured"
BOUNDED: Final = "bounded"
_STREAM: Final = ("tenant", "gateway", "epoch", "address")
_STRETCH: Final = ("tenant", "gateway", "boot", "stretch")


def now() -> datetime:
    """Since when messages wait is told by this clock."""
    return datetime.now(UTC)


def judged(telemetry: DataFrame, offsets: DataFrame, now: datetime) -> DataFrame:
    """`telemetry` with `received_at`, `event_time` and `clock_quality` as they are known now, and `held` (boolean).

    `offsets`: table `clock_offsets`. Rows of it may be there twice; a message has one row here all the same.
    """
    rows = _put_right(telemetry, offsets, ~is_sparkplug("address"))
    waits = F.col("ingested_at") > F.lit(now) - F.expr(f"INTERVAL {HELD_HOURS_MAX} HOURS")
    return rows.withColumn("held", F.col("wrong") & waits).drop("wrong")


def delivered(telemetry: DataFrame, offsets: DataFrame) -> DataFrame:
    """`telemetry` for who asks how long messages took, Sparkplug's too: nobody waits here, and a time that is not
    known, or within bounds only, is null: `received_at`, and `event_time` where that was the stamp."""
    rows = _put_right(telemetry, offsets, F.lit(True))
    unknown = F.col("wrong") | (F.col("clock_quality") == BOUNDED)
    of_stamp = F.col("event_time") == F.col("received_at")
    return rows.withColumns(
        {
            "event_time": F.when(~(unknown & of_stamp), F.col("event_time")),
            "received_at": F.when(~unknown, F.col("received_at")),
        }
    ).drop("wrong")


def _put_right(telemetry: DataFrame, offsets: DataFrame, of: Column) -> DataFrame:
    """Stamps of the messages `of` as they are known now; `wrong` (boolean): this one is not to be believed."""
    joined = telemetry.join(F.broadcast(_ranges(offsets)), list(_STREAM), "left")
    joined = joined.join(F.broadcast(_wrong(offsets)), ["tenant", "gateway"], "left")
    unsure = (F.col("clock_quality") == NOT_GOOD) & of
    found = F.try_element_at(F.filter("ranges", _is_of), F.lit(1))
    rows = joined.withColumn("found", F.when(unsure, found))
    low, high = F.col("found.low"), F.col("found.high")
    nearest = F.greatest(F.least(F.lit(0), high), low)  # null is no bound
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


def _ranges(offsets: DataFrame) -> DataFrame:
    """Column `ranges` of each address: what is known of messages of it."""
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


def _is_of(one: Column) -> Column:
    """This range has the row's message."""
    stamp, sequence = F.col("received_at"), F.col("sequence")
    stamped = (one["after"].isNull() | (stamp > one["after"])) & (one["until"].isNull() | (stamp <= one["until"]))
    return sequence.between(one["first"], one["last"]) & stamped


def _wrong(offsets: DataFrame) -> DataFrame:
    """Gateways (`wrong`: true) of which a clock is known to be wrong, and not of all messages how far it was off."""
    away = F.lit(NEAR_SECONDS * 1_000_000)
    shows = F.abs(F.unix_micros("heard_at") - F.unix_micros("told_at")) > away
    was = F.coalesce(F.greatest(F.abs("offset_low_us"), F.abs("offset_high_us")) > away, F.lit(True))
    off = F.when(F.col("known") == "not yet", shows).otherwise(was)
    stretches = offsets.groupBy(*_STRETCH).agg(F.max("whole").alias("whole"), F.max(off).alias("off"))
    found = stretches.where("off AND NOT whole").select("tenant", "gateway").distinct()
    return found.withColumn("wrong", F.lit(True))
