"""What gateways have told of their clocks, put to the messages that a job takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark import delta_log
from spark.jobs.damage import Damage
from spark.jobs.progress import Position, Span
from spark.tables import Lake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "clocks"
"""Who sets files of `_OFFSETS` aside, whichever job it is that reads them."""
_OFFSETS = "clock_offsets"


def judged(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.judged` for who reads what messages say."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.judged(telemetry, offsets, clocks.now())


def delivered(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.delivered` for who asks how long messages took."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.delivered(telemetry, offsets)


def are_told(lake: Lake) -> bool:
    """Whether any gateway has told how far its clock was off."""
    return bool(lake.rows(_OFFSETS))


def _offsets(lake: Lake) -> DataFrame | None:
    """What has been told; None where nothing has. A file that is gone is set aside: the clocks of others are known."""
    state = lake.state(_OFFSETS)
    if state is None or not lake.rows(_OFFSETS):
        return None
    lake.check_readable(_OFFSETS, state.version)
    files = delta_log.files(lake.opened(_OFFSETS, state.version))
    damage = Damage(lake, _OFFSETS, NAME)
    sound = next(damage.attempts(Span(files, Position(state.version), None)))
    lake.notes += damage.notes
    return lake.rows_of(_OFFSETS, sound)
