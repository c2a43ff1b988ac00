"""Corrections of wrong gateway clocks, applied to the messages of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark import delta_log, session
from spark.jobs.damage import Damage
from spark.jobs.progress import Position, Span
from spark.tables import Lake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "clocks"
"""Reader of table `clock_offsets` in `set_aside`, whichever job it is."""
_OFFSETS = "clock_offsets"


def judged(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """Correct stamps for readings (`clocks.judged`); messages may be held."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.judged(telemetry, offsets, clocks.now())


def delivered(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """Correct stamps for delivery times (`clocks.delivered`); unknown times are null."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.delivered(telemetry, offsets)


def _offsets(lake: Lake) -> DataFrame | None:
    """Return the reported offsets, without damaged files, or None where no gateway has reported one.

    They are computed at once: what fails later is then damage of the messages.
    """
    if not lake.rows(_OFFSETS):
        return None
    damage = Damage(lake, _OFFSETS, NAME)
    for files in damage.attempts(_whole(lake)):
        with damage.noticed(files):
            offsets = session.kept(lake.rows_of(_OFFSETS, files))
    lake.notes += damage.notes
    return offsets


def _whole(lake: Lake) -> Span:
    """Return all files of the offsets. Raises what `Lake.check_readable` does."""
    state = lake.state(_OFFSETS)
    if state is None:
        return Span((), Position(0), None)
    lake.check_readable(_OFFSETS, state.version)
    return Span(delta_log.files(lake.opened(_OFFSETS, state.version)), Position(state.version), None)
