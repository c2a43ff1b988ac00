"""What gateways have told of their clocks, put to the messages that a job takes: as Spark's rows, or on one machine as
columns of this process, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark import delta_log, session
from spark.here import clocks as here
from spark.jobs.damage import Damage
from spark.jobs.following import Batch
from spark.jobs.progress import Position, Span
from spark.tables import Lake
from spark.transforms import clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "clocks"
"""Who sets files of `_OFFSETS` aside, whichever job it is that reads them."""
_OFFSETS = "clock_offsets"
Read = Callable[[Sequence[str]], Iterator[pa.Table] | None]
"""Columns of messages in this process, part by part; None where that is not to read them."""


def judged(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.judged` for who reads what messages say."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.judged(telemetry, offsets, clocks.now())


def delivered(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`clocks.delivered` for who asks how long messages took."""
    offsets = _offsets(lake)
    return telemetry if offsets is None else clocks.delivered(telemetry, offsets)


def judged_here(lake: Lake, read: Read, names: Sequence[str]) -> Iterator[pa.Table] | None:
    """The same of messages in this process: these columns of them, and where gateways have told offsets those of a
    stamp and `held`. None where Spark is to do it: on a cluster, and where they have told a lot."""
    now = clocks.now()
    return _put_right(lake, read, names, lambda part, told: here.judged(part, told, now))


def delivered_here(batch: Batch, names: Sequence[str]) -> Iterator[pa.Table] | None:
    """The same of a batch for who asks how long messages took; a time that nobody knows is null."""
    return _put_right(batch.lake, batch.here, names, here.delivered)


def _put_right(
    lake: Lake, read: Read, names: Sequence[str], put_right: Callable[[pa.Table, here.Told], pa.Table]
) -> Iterator[pa.Table] | None:
    rows = lake.rows(_OFFSETS)
    if not rows:
        return read(names)
    parts = read(tuple(dict.fromkeys((*names, *here.STAMP)))) if rows <= here.ROWS_MAX else None
    if parts is None:
        return None
    told = _told(lake)
    return (put_right(part, told) for part in parts)


def _told(lake: Lake) -> here.Told:
    """What has been told, held in this process."""
    damage = Damage(lake, _OFFSETS, NAME)
    for files in damage.attempts(_whole(lake)):
        with damage.noticed(files):
            told = here.told(pa.concat_tables(lake.columns_of(_OFFSETS, files, here.OFFSET)))
    lake.notes += damage.notes
    return told


def _offsets(lake: Lake) -> DataFrame | None:
    """What has been told; None where nothing has. A damaged file is set aside: the clocks of others are known. It is
    read at once, as whoever reads it later is looking for damage in the messages only."""
    if not lake.rows(_OFFSETS):
        return None
    damage = Damage(lake, _OFFSETS, NAME)
    for files in damage.attempts(_whole(lake)):
        with damage.noticed(files):
            offsets = session.kept(lake.rows_of(_OFFSETS, files))
    lake.notes += damage.notes
    return offsets


def _whole(lake: Lake) -> Span:
    """The table of offsets, of which some have been told. Raises what `Lake.check_readable` does."""
    state = lake.state(_OFFSETS)
    if state is None:
        return Span((), Position(0), None)
    lake.check_readable(_OFFSETS, state.version)
    return Span(delta_log.files(lake.opened(_OFFSETS, state.version)), Position(state.version), None)
