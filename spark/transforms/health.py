"""readings -> device_days -> device_health: battery, silence, reboots, clock and radio of each device.

The sums of each day of a device are kept (`device_days`); its health is computed from its last days. No sum depends on
the order in which messages land.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.decoding.sparkplug import ONLINE
from spark.transforms.times import is_plausible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAYS: Final = 30
"""Days of a device that its health covers, counted back from the newest of its gateway.

A battery that lasts years has lost some percent by then, and one that was replaced before is forgotten.
"""
BOOTS_MAX: Final = 1_440
"""Boots kept per day: one a minute. More show nothing new."""
UPTIME_MAX: Final = 1e11
"""Largest uptime in seconds or milliseconds; larger values are something else."""
BOOT_APART_S: Final = 120
"""Boots reported within this time are one: uptime and clock drift, and a birth follows its boot."""
_DAY_S: Final = 86_400.0
SPREAD_MIN: Final = (3_600 / _DAY_S) ** 2
"""Days squared: values of less than about an hour show no trend."""
KEY: Final = ("tenant", "gateway", "device")
_BEGIN: Final = r"(?i)(^|[._/:])"
BATTERY: Final = _BEGIN + r"(v?bat|batt|battery)([._]?(level|voltage|volts?|v|percent(age)?|pct|soc))?\z"
UPTIME: Final = _BEGIN + r"uptime([._]?(s|sec|seconds|ms))?\z"
IN_MS: Final = r"(?i)ms\z"
RSSI: Final = _BEGIN + r"rssi\z"
BIRTH: Final = "/[ND]BIRTH/"
"""Names under which devices send these, at the end of a metric's path."""

SUMS = ("messages", "suspect", "battery_n", "battery_t", "battery_v", "battery_tt", "battery_tv", "rssi_n", "rssi_sum")
_LATER = "new.battery_at >= old.battery_at OR old.battery_at IS NULL"
FOLD = {
    **{name: f"old.{name} + new.{name}" for name in SUMS},
    "first_at": "least(old.first_at, new.first_at)",
    "last_at": "greatest(old.last_at, new.last_at)",
    **{
        name: f"CASE WHEN {_LATER} THEN coalesce(new.{name}, old.{name}) ELSE old.{name} END"
        for name in ("battery_metric", "battery")
    },
    "battery_at": "greatest(old.battery_at, new.battery_at)",
    "ahead_s": "greatest(old.ahead_s, new.ahead_s)",
    "boots": f"slice(array_sort(array_union(old.boots, new.boots)), 1, {BOOTS_MAX})",
}
"""Combines a row of `device_days` with one of further readings: SQL over `old` and `new`, by column."""


def days(readings: DataFrame) -> DataFrame:
    """Return one row per device and day of reception, as in table `device_days`.

    Battery sums are those of a straight line, over days since the start of the day: below 0 if a device sends a value
    later. `ahead_s`: how far the device's clock is at least ahead of its gateway's, for readings with a time of their
    own. `boots`: seconds since 1970. If a gateway's clock was wrong, the time of landing replaces that of reception.
    """
    metric, value = F.col("metric"), F.col("value")
    of_battery = metric.rlike(BATTERY) & value.isNotNull()
    battery = F.when(of_battery, value)
    of_device = F.col("time_source") != "gateway"
    ahead = F.when(of_device, (F.unix_micros("event_time") - F.unix_micros("received_at")) / 1e6)
    # A wrong clock of a gateway may give a day in the future, which would stay the newest day and hide all others.
    received = F.when(is_plausible(F.col("received_at")), F.col("received_at")).otherwise(F.col("ingested_at"))
    begin = F.unix_micros(F.date_trunc("day", received))
    since = (F.unix_micros("event_time") - begin) / (1e6 * _DAY_S)
    # A time of a wrong clock may be years away, and would outweigh all others.
    at = F.when(
        of_battery, F.when(F.abs(since) <= DAYS, since).otherwise((F.unix_micros(received) - begin) / (1e6 * _DAY_S))
    )
    dated = readings.withColumn("received_at", received).withColumn("event_date", F.to_date("received_at"))
    # Counted apart: else everything else is first added up for each message, of which there are many.
    messages = (
        dated.select(*KEY, "event_date", "address", "epoch", "sequence")
        .distinct()
        .groupBy(*KEY, "event_date")
        .agg(F.count(F.lit(1)).alias("messages"))
    )
    summed = dated.groupBy(*KEY, "event_date").agg(
        F.min("received_at").alias("first_at"),
        F.max("received_at").alias("last_at"),
        F.count_if("suspect").alias("suspect"),
        F.max_by("metric", F.when(of_battery, F.struct("event_time", "metric"))).alias("battery_metric"),
        F.max_by("value", F.when(of_battery, F.struct("event_time", "metric"))).alias("battery"),
        F.max(F.when(of_battery, F.col("event_time"))).alias("battery_at"),
        F.count(battery).alias("battery_n"),
        *(
            F.coalesce(F.sum(column), F.lit(0.0)).alias(name)
            for name, column in (
                ("battery_t", at),
                ("battery_v", battery),
                ("battery_tt", at * at),
                ("battery_tv", at * battery),
                ("rssi_sum", F.when(metric.rlike(RSSI), value)),
            )
        ),
        F.count(F.when(metric.rlike(RSSI), value)).alias("rssi_n"),
        F.max(ahead).alias("ahead_s"),
        F.slice(F.array_sort(F.collect_set(_boot())), 1, BOOTS_MAX).alias("boots"),
    )
    return summed.join(messages, [*KEY, "event_date"]).select(*schemas.DEVICE_DAYS.columns.names)


def _boot() -> Column:
    """Return when the device started, in seconds since 1970, if the reading shows it; else null."""
    unit = F.when(F.col("metric").rlike(IN_MS), 1_000.0).otherwise(1.0)
    is_uptime = F.col("metric").rlike(UPTIME) & (F.col("value") >= 0) & (F.col("value") < UPTIME_MAX)
    by_uptime = F.when(is_uptime, F.unix_seconds("event_time") - F.round(F.col("value") / unit).cast("bigint"))
    born = (F.col("metric") == ONLINE) & (F.col("value") == 1.0) & F.col("address").rlike(BIRTH)
    return F.coalesce(by_uptime, F.when(born, F.unix_seconds("event_time")))


def health(days: DataFrame) -> DataFrame:
    """Return one row per device, for its last `DAYS` days, as in table `device_health`.

    A device is silent for as long as its gateway has received others and not it; `missed` is that in its own intervals.
    The battery's slope is that of a straight line through its values, per day.
    """
    newest = days.groupBy("tenant", "gateway").agg(
        F.max("event_date").alias("newest"), F.max("last_at").alias("gateway_at")
    )
    recent = days.join(newest, ["tenant", "gateway"]).where(F.col("event_date") > F.date_sub("newest", DAYS))
    # Days counted from the newest: what a line of so few days is fitted by stays small numbers.
    shift = F.datediff("event_date", "newest").cast("double")
    n, t, v = F.col("battery_n"), F.col("battery_t"), F.col("battery_v")
    seconds = (F.unix_micros("last_at") - F.unix_micros("first_at")) / 1e6
    place = F.struct("battery_at", "event_date")
    has_battery = F.col("battery_at").isNotNull()
    summed = recent.groupBy(*KEY).agg(
        F.first("gateway_at").alias("gateway_at"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.sum("messages").alias("messages"),
        F.sum("suspect").alias("suspect"),
        F.try_divide(F.sum(seconds), F.sum(F.col("messages") - 1)).alias("interval_s"),
        F.max_by("battery_metric", F.when(has_battery, place)).alias("battery_metric"),
        F.max_by("battery", F.when(has_battery, place)).alias("battery"),
        F.sum(n).alias("n"),
        F.sum(t + shift * n).alias("t"),
        F.sum(v).alias("v"),
        F.sum(F.col("battery_tt") + 2 * shift * t + shift * shift * n).alias("tt"),
        F.sum(F.col("battery_tv") + shift * v).alias("tv"),
        F.max_by("ahead_s", F.when(F.col("ahead_s").isNotNull(), F.col("event_date"))).alias("clock_ahead_s"),
        F.try_divide(F.sum("rssi_sum"), F.sum("rssi_n")).alias("rssi"),
        F.array_sort(F.flatten(F.collect_list("boots"))).alias("boots"),
    )
    silent = (F.unix_micros("gateway_at") - F.unix_micros("last_at")) / 1e6
    spread = F.col("n") * F.col("tt") - F.col("t") * F.col("t")
    slope = (F.col("n") * F.col("tv") - F.col("t") * F.col("v")) / spread
    starts = F.expr(f"filter(boots, (at, i) -> i = 0 OR at - boots[i - 1] > {BOOT_APART_S})")
    columns = {
        "silent_s": silent,
        "missed": F.floor(F.when(F.col("interval_s") > 0, silent / F.col("interval_s"))),
        "battery_per_day": F.when((F.col("n") > 1) & (spread > SPREAD_MIN * F.col("n") * F.col("n")), slope),
        "boots": F.size(starts),
        "last_boot_at": F.timestamp_seconds(F.try_element_at(starts, F.lit(-1))),
    }
    return summed.withColumns(columns).select(*schemas.DEVICE_HEALTH.columns.names)
