"""Messages decoded with what is registered and known at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark import registry
from spark.jobs import last_births, stamps
from spark.lake import Lake
from spark.lineage import Pins
from spark.transforms import clocks, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pin(lake: Lake, batch: tuple[str, int]) -> Pins:
    """Return the versions that a batch of messages is decoded with now."""
    schemas, known, offsets = map(lake.version, ("payload_schemas", last_births.BIRTHS, stamps.OFFSETS))
    return Pins(batch, schemas, known, offsets, clocks.now())


def decode(lake: Lake, messages: DataFrame, pins: Pins) -> DataFrame:
    """Return `readings.decoded` of messages with these versions, not yet named by births."""
    registered = registry.registered(lake.at("payload_schemas"), pins.schemas) if pins.schemas is not None else ()
    return readings.decoded(stamps.judged(lake, messages, pins.offsets, pins.now), registered)
