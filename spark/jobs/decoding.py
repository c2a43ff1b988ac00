"""Decode messages with the schemas, births and offsets of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark import registry
from spark.jobs import clock_corrections, last_births
from spark.lake import SparkLake
from spark.lineage import Pins
from spark.transforms import clocks, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pin(lake: SparkLake, batch: tuple[str, int]) -> Pins:
    """Return the versions that a batch of messages is decoded with now."""
    schemas, known, offsets = map(lake.version, ("payload_schemas", last_births.BIRTHS, clock_corrections.OFFSETS))
    return Pins(batch, schemas, known, offsets, clocks.now())


def decode(lake: SparkLake, messages: DataFrame, pins: Pins) -> DataFrame:
    """Return the values of messages, decoded with these versions and not yet named by births."""
    registered = registry.load_schemas(lake.at("payload_schemas"), pins.schemas) if pins.schemas is not None else ()
    return readings.decode_messages(
        clock_corrections.correct_for_readings(lake, messages, pins.offsets, pins.now), registered
    )
