"""Corrections of wrong gateway clocks, applied to the messages of a batch."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from spark.lake import SparkLake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFSETS: Final = "clock_offsets"


def correct_for_readings(lake: SparkLake, telemetry: DataFrame, version: int | None, now: datetime) -> DataFrame:
    """Correct stamps for readings by the offsets of a version; messages may be held."""
    if version is None or not lake.open(OFFSETS, version).count():
        return telemetry
    return clocks.correct_for_readings(telemetry, lake.read(OFFSETS, version), now)


def correct_for_delivery(lake: SparkLake, telemetry: DataFrame) -> DataFrame:
    """Correct stamps for delivery times; unknown times are null."""
    return clocks.correct_for_delivery(telemetry, lake.read(OFFSETS)) if lake.rows(OFFSETS) else telemetry
