"""Corrections of wrong gateway clocks, applied to the messages of a batch."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from spark.lake import Lake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFSETS: Final = "clock_offsets"


def judged(lake: Lake, telemetry: DataFrame, version: int | None, now: datetime) -> DataFrame:
    """Correct stamps for readings (`clocks.judged`) by the offsets of a version; messages may be held."""
    if version is None or not lake.open(OFFSETS, version).count():
        return telemetry
    return clocks.judged(telemetry, lake.read(OFFSETS, version), now)


def delivered(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """Correct stamps for delivery times (`clocks.delivered`); unknown times are null."""
    return clocks.delivered(telemetry, lake.read(OFFSETS)) if lake.rows(OFFSETS) else telemetry
