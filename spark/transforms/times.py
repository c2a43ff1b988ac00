"""What a wrong clock may do to a row: at most be flagged.

Devices and gateways without a battery-backed clock send times from 1970 or from next year. A time ahead of its
ingestion is clamped, so that no row can sit in a window that has not come; a time before Waypost existed is kept, as
nobody knows the right one. Both are flagged `suspect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AHEAD_SECONDS_MAX = 300
"""How far ahead of its ingestion an event time may be: clocks of an unsynchronised LAN differ by minutes."""
PLAUSIBLE_FROM = "2020-01-01"
"""Event times before this come from clocks that start at zero or at a firmware's build date."""


def with_trusted_times(rows: DataFrame) -> DataFrame:
    """`rows` with `event_time` clamped to `ingested_at` + 5 min, and `suspect` (boolean) added."""
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {AHEAD_SECONDS_MAX} SECONDS")
    suspect = (F.col("event_time") > latest) | (F.col("event_time") < F.lit(PLAUSIBLE_FROM).cast("timestamp"))
    return rows.withColumns({"suspect": suspect, "event_time": F.least(F.col("event_time"), latest)})


def seconds_between(earlier: str, later: str) -> Column:
    """Seconds from one timestamp column to another, as a double with microseconds; never below zero."""
    micros = F.unix_micros(F.col(later)) - F.unix_micros(F.col(earlier))
    return F.greatest(micros, F.lit(0)) / F.lit(1e6)
