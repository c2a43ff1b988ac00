"""Births that Sparkplug's data goes by: sparkplug_births -> sparkplug_last_births.

Births stay for ever, and nearly all data goes by the last ones. So a batch reads those, and the files that the births
have got since. Data that was received before the last birth of its gateway, as after a restart of a node during an
outage, has all births read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark import schemas
from spark.jobs.snapshot import SnapshotStep
from spark.lake import Lake
from spark.transforms import births

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BIRTHS: Final = schemas.SPARKPLUG_BIRTHS.name
LAST_BIRTHS: Final = schemas.SPARKPLUG_LAST_BIRTHS.name


def known(lake: Lake, messages: DataFrame, version: int | None) -> DataFrame:
    """Return the births up to a version that Sparkplug's data among these messages goes by, and perhaps others."""
    if version is None:
        return lake.nothing(BIRTHS)
    made_of = STEP.made_of(lake, LAST_BIRTHS)
    before = made_of.sources.get(BIRTHS) if made_of is not None else None
    if before is None or before.version > version or before.id != str(lake.open(BIRTHS, version).metadata().id):
        return lake.read(BIRTHS, version)
    since = lake.files_since(BIRTHS, before.version, version)
    last_births = lake.read(LAST_BIRTHS)
    if since is None or not births.are_enough(last_births, messages):
        return lake.read(BIRTHS, version)
    return last_births.unionByName(lake.rows_of(BIRTHS, since).select(*last_births.columns))


def _frames(lake: Lake) -> Mapping[str, DataFrame]:
    return {LAST_BIRTHS: births.last(lake.read(BIRTHS))}


STEP: Final = SnapshotStep(LAST_BIRTHS, (BIRTHS,), (LAST_BIRTHS,), revision=1, frames=_frames)
