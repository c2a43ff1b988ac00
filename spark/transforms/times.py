"""What a wrong clock may do to a row: at most be flagged.

Devices and gateways without a battery-backed clock send times from 1970 or from next year. A time ahead of its
ingestion is clamped, so that no row can sit in a window that has not come; a time before Waypost existed is kept, as
nobody knows the right one. Both are flagged `suspect`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AHEAD_SECONDS_MAX = 300
"""How far ahead of its ingestion an event time may be: clocks of an unsynchronised LAN differ by minutes."""
PLAUSIBLE_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Event times before this come from clocks that start at zero or at a firmware's build date."""
UNKNOWN_DATE: Final = date(1970, 1, 1)
"""Where rows of such times are kept: a date is a folder with files of its own, and a clock may name 20 000 of them."""


def believable(time: Column) -> Column:
    """Whether something can have been then, having landed at `ingested_at`."""
    return time.between(F.lit(PLAUSIBLE_FROM), _latest())


def _latest() -> Column:
    return F.col("ingested_at") + F.expr(f"INTERVAL {AHEAD_SECONDS_MAX} SECONDS")


def with_trusted_times(rows: DataFrame) -> DataFrame:
    """`rows` with `event_time` clamped to `ingested_at` + 5 min, and `suspect` (boolean) added.

    A time that nobody knows (null) is suspect, and becomes that of the ingestion.
    """
    at, latest = F.col("event_time"), _latest()
    suspect = at.isNull() | (at > latest) | (at < F.lit(PLAUSIBLE_FROM))
    clamped = F.when(at.isNull(), F.col("ingested_at")).otherwise(F.least(at, latest))
    return rows.withColumns({"suspect": suspect, "event_time": clamped})


def with_trusted_reception(rows: DataFrame) -> DataFrame:
    """`rows` with `received_at` as it can be believed, and `suspect` (boolean) added: where the gateway's clock was
    wrong, reception is when they landed. A clock at 1970 would stretch every axis over half a century."""
    trusted = with_trusted_times(rows.withColumn("event_time", F.col("received_at")))
    received_at = F.when(F.col("suspect"), F.col("ingested_at")).otherwise(F.col("event_time"))
    return trusted.withColumn("received_at", received_at).drop("event_time")


def with_measured_times(rows: DataFrame, told: Column) -> DataFrame:
    """`rows` with `event_time`, `suspect` (boolean) and `time_source` for values that may have a time of their own.

    `told` is what the value says of when it was measured, or null. It is believed where it can be (`time_source`
    "device"). Else it is when the message says it was made ("message"), or when the gateway received it ("gateway"); of
    a device that tells a time nobody can believe such a row is `suspect`.
    """
    believed, of_message = believable(told), believable(F.col("event_time"))
    source = F.when(believed, F.lit("device")).when(F.col("event_time") == F.col("received_at"), F.lit("gateway"))
    return rows.withColumns(
        {
            "suspect": F.when(told.isNull(), ~of_message).otherwise(~believed),
            "time_source": source.otherwise(F.lit("message")),
            "event_time": F.when(believed, told).otherwise(F.least(F.col("event_time"), _latest())),
        }
    )


def kept_under(time: str) -> Column:
    """The date that rows of this timestamp column are kept under (`event_date`)."""
    return F.when(F.col(time) < F.lit(PLAUSIBLE_FROM), F.lit(UNKNOWN_DATE)).otherwise(F.to_date(time))


def hour_kept_under(time: str) -> Column:
    """The hour of the day that rows of this timestamp column are kept under (`event_hour`)."""
    return F.when(F.col(time) < F.lit(PLAUSIBLE_FROM), F.lit(0)).otherwise(F.hour(time))


def seconds_between(earlier: str, later: str) -> Column:
    """Seconds from one timestamp column to another, as a double with microseconds; never below zero."""
    micros = F.unix_micros(F.col(later)) - F.unix_micros(F.col(earlier))
    return F.greatest(micros, F.lit(0)) / F.lit(1e6)
