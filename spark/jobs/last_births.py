"""What Sparkplug's data goes by: sparkplug_births -> sparkplug_last_births.

Births stay for ever, and nearly all data goes by the last ones. So a pass reads those, and what has been born since
they were put together. Data that was received before the last birth of its gateway, as what waited there while a node
was started again, has all births read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from spark import schemas
from spark.delta_log import File
from spark.here import births as here
from spark.here import parts
from spark.jobs import changes
from spark.jobs.snapshot import Snapshot, held
from spark.provenance import Provenance, State
from spark.tables import Lake
from spark.transforms import births

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BIRTHS: Final = schemas.SPARKPLUG_BIRTHS.name
LAST_BIRTHS: Final = schemas.SPARKPLUG_LAST_BIRTHS.name
HERE_MAX: Final = 1_000_000
"""Metrics of last births that are held in this process: 100 MB."""


def known(lake: Lake, waiting: here.Since) -> bytes | None:
    """The births that data of these gateways goes by, for `spark.here.births.opened`; nothing where there is no data,
    None where they are too many."""
    return here.known(_enough(lake, waiting), waiting) if waiting else b""


def known_to_spark(lake: Lake, messages: DataFrame) -> DataFrame:
    """The births that Sparkplug's data among these messages goes by, and perhaps others."""
    found = _last(lake)
    if found is not None:
        last_births = lake.read(LAST_BIRTHS, found.there.version)
        if births.are_enough(last_births, messages):
            since = lake.rows_of(BIRTHS, found.since)
            return last_births.unionByName(since.select(*last_births.columns))
    return lake.read(BIRTHS)


def _enough(lake: Lake, waiting: here.Since) -> Iterable[pa.Table]:
    """Parts of births that have those which data of these gateways goes by."""
    found = _last(lake)
    last_births = held(lake, LAST_BIRTHS, found.there, HERE_MAX) if found is not None else None
    if found is None or last_births is None or not here.are_enough(last_births, waiting):
        return lake.read_here(BIRTHS, here.BIRTH)
    return chain((last_births.select(here.BIRTH),), lake.columns_of(BIRTHS, found.since, here.BIRTH))


class _Last(NamedTuple):
    """Table `sparkplug_last_births` as it is there; `since`: files of `sparkplug_births` with all that is not in it."""

    there: State
    since: Sequence[File]


def _last(lake: Lake) -> _Last | None:
    """None where it is not known what the table was made of, or what has come since."""
    there = lake.state(LAST_BIRTHS)
    made_of = STEP.made_of(lake, LAST_BIRTHS, there) if there is not None else None
    since = changes.since(lake, BIRTHS, made_of.sources[BIRTHS]) if made_of is not None else None
    return _Last(there, since.changed) if there is not None and since is not None else None


def _frames(lake: Lake) -> Mapping[str, DataFrame] | Mapping[str, pa.Table]:
    rows = _last_of(lake.read_here(BIRTHS, here.LAST)) if lake.here else None
    return {LAST_BIRTHS: births.last(lake.read(BIRTHS))} if rows is None else {LAST_BIRTHS: rows}


def _update(lake: Lake, there: State, made_of: Provenance) -> Mapping[str, pa.Table] | None:
    """`sparkplug_last_births` as `_frames` makes it, of what it is and what has been born since."""
    since = changes.since(lake, BIRTHS, made_of.sources[BIRTHS]) if lake.here else None
    before = held(lake, LAST_BIRTHS, there, HERE_MAX) if since is not None else None
    if since is None or before is None:
        return None
    born = lake.columns_of(BIRTHS, since.changed, here.LAST)
    rows = _last_of(chain((before.select(here.LAST),), born))
    return {LAST_BIRTHS: rows} if rows is not None else None


def _last_of(born: Iterable[pa.Table]) -> pa.Table | None:
    rows = parts.summed(born, here.last, here.last, HERE_MAX)
    return rows.select(schemas.SPARKPLUG_LAST_BIRTHS.columns.names) if rows is not None else None


STEP: Final = Snapshot(LAST_BIRTHS, (BIRTHS,), (LAST_BIRTHS,), revision=1, frames=_frames, update=_update)
