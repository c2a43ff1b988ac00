"""What Sparkplug's data goes by: sparkplug_births -> sparkplug_last_births.

Births stay for ever, and nearly all data goes by the last ones. So a pass reads those, and what has been born since
they were put together. Data that was received before the last birth of its gateway, as what waited there while a node
was started again, has all births read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from spark import schemas
from spark.delta_log import File
from spark.jobs import changes
from spark.jobs.snapshot import Snapshot
from spark.provenance import State
from spark.tables import Lake
from spark.transforms import births

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BIRTHS: Final = schemas.SPARKPLUG_BIRTHS.name
LAST_BIRTHS: Final = schemas.SPARKPLUG_LAST_BIRTHS.name


def known(lake: Lake, messages: DataFrame) -> DataFrame:
    """Return the births that Sparkplug's data among these messages goes by, and perhaps others."""
    found = _last(lake)
    if found is not None:
        last_births = lake.read(LAST_BIRTHS, found.there.version)
        if births.are_enough(last_births, messages):
            since = lake.rows_of(BIRTHS, found.since)
            return last_births.unionByName(since.select(*last_births.columns))
    return lake.read(BIRTHS)


class _Last(NamedTuple):
    """Table `sparkplug_last_births` as it is; `since`: files of `sparkplug_births` with all that is not in it."""

    there: State
    since: Sequence[File]


def _last(lake: Lake) -> _Last | None:
    """Return None where the sources of the table, or what has come since, are unknown."""
    there = lake.state(LAST_BIRTHS)
    made_of = STEP.made_of(lake, LAST_BIRTHS, there) if there is not None else None
    since = changes.since(lake, BIRTHS, made_of.sources[BIRTHS]) if made_of is not None else None
    return _Last(there, since) if there is not None and since is not None else None


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    return {LAST_BIRTHS: births.last(lake.read(BIRTHS))}


STEP: Final = Snapshot(LAST_BIRTHS, (BIRTHS,), (LAST_BIRTHS,), revision=1, frames=_frames)
