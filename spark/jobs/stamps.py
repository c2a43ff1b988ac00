"""What gateways have told of their clocks, put to the messages that a job takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.tables import Lake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judged(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.judged` for who reads what messages say."""
    if not lake.rows("clock_offsets"):
        return telemetry
    return clocks.judged(telemetry, lake.read("clock_offsets"), clocks.now())


def delivered(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.delivered` for who asks how long messages took."""
    if not lake.rows("clock_offsets"):
        return telemetry
    return clocks.delivered(telemetry, lake.read("clock_offsets"))
