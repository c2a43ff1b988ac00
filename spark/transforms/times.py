"""Limit the effect of a wrong clock: a row is flagged at most.

Devices and gateways without a battery-backed clock send times from 1970 or from next year. A time ahead of its
ingestion is clamped, so that no row is in a future window. A time before Waypost existed is kept, as the right one is
unknown. Both are flagged `suspect`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AHEAD_SECONDS_MAX = 300
"""Largest lead in seconds of an event time over its ingestion: clocks of an unsynchronised LAN differ by minutes."""
PLAUSIBLE_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Earlier event times come from clocks that start at zero or at a firmware's build date."""
UNKNOWN_DATE: Final = date(1970, 1, 1)
"""Date of the partition for rows of such times: a date is a folder with files, and a clock may name 20 000 of them."""


def is_plausible(time: Column) -> Column:
    """Return whether something that landed at `ingested_at` can have happened at this time."""
    return time.between(F.lit(PLAUSIBLE_FROM), _latest_plausible())


def _latest_plausible() -> Column:
    return F.col("ingested_at") + F.expr(f"INTERVAL {AHEAD_SECONDS_MAX} SECONDS")


def with_trusted_times(rows: DataFrame) -> DataFrame:
    """Return `rows` with `event_time` clamped to `ingested_at` + 5 min, and `suspect` (boolean) added.

    An unknown time (null) is suspect, and becomes that of the ingestion.
    """
    at, latest = F.col("event_time"), _latest_plausible()
    suspect = at.isNull() | (at > latest) | (at < F.lit(PLAUSIBLE_FROM))
    clamped = F.when(at.isNull(), F.col("ingested_at")).otherwise(F.least(at, latest))
    return rows.withColumns({"suspect": suspect, "event_time": clamped})


def with_trusted_reception(rows: DataFrame) -> DataFrame:
    """Return `rows` with a plausible `received_at`, and `suspect` (boolean) added.

    If the gateway's clock was wrong, the time of landing is used. A clock at 1970 would stretch every axis over half a
    century.
    """
    trusted = with_trusted_times(rows.withColumn("event_time", F.col("received_at")))
    received_at = F.when(F.col("suspect"), F.col("ingested_at")).otherwise(F.col("event_time"))
    return trusted.withColumn("received_at", received_at).drop("event_time")


def with_measured_times(rows: DataFrame, measured: Column) -> DataFrame:
    """Return `rows` with `event_time`, `suspect` (boolean) and `time_source`, for values that may have their own time.

    `measured` is the time of the measurement by the value itself, or null. It is used if plausible (`time_source`
    "device"). Otherwise the time of the message ("message") or of its reception ("gateway") is used, and the row is
    `suspect` if the device sent an implausible time.
    """
    believed, of_message = is_plausible(measured), is_plausible(F.col("event_time"))
    source = F.when(believed, F.lit("device")).when(F.col("event_time") == F.col("received_at"), F.lit("gateway"))
    return rows.withColumns(
        {
            "suspect": F.when(measured.isNull(), ~of_message).otherwise(~believed),
            "time_source": source.otherwise(F.lit("message")),
            "event_time": F.when(believed, measured).otherwise(F.least(F.col("event_time"), _latest_plausible())),
        }
    )


def event_date(time: str) -> Column:
    """Return the date of the partition for rows of this timestamp column (`event_date`)."""
    return F.when(F.col(time) < F.lit(PLAUSIBLE_FROM), F.lit(UNKNOWN_DATE)).otherwise(F.to_date(time))


def event_hour(time: str) -> Column:
    """Return the hour of the partition for rows of this timestamp column (`event_hour`)."""
    return F.when(F.col(time) < F.lit(PLAUSIBLE_FROM), F.lit(0)).otherwise(F.hour(time))


def seconds_between(earlier: str, later: str) -> Column:
    """Return the seconds from one timestamp column to another, as a double with microseconds; never below zero."""
    micros = F.unix_micros(F.col(later)) - F.unix_micros(F.col(earlier))
    return F.greatest(micros, F.lit(0)) / F.lit(1e6)
