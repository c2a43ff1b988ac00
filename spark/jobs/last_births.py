"""Births that Sparkplug data refers to: sparkplug_births -> sparkplug_last_births.

All births are kept, and nearly all data refers to the last ones. A batch reads those, and the files that were added to
the births since. For data that was received before the last birth of its gateway, as after a restart of a node during
an outage, all births are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark import schemas
from spark.jobs.snapshot import SnapshotStep
from spark.lake import SparkLake
from spark.transforms import births

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BIRTHS: Final = schemas.SPARKPLUG_BIRTHS.name
LAST_BIRTHS: Final = schemas.SPARKPLUG_LAST_BIRTHS.name


def read_births(lake: SparkLake, messages: DataFrame, version: int | None) -> DataFrame:
    """Return the births up to a version that these messages refer to, and perhaps others."""
    if version is None:
        return lake.empty(BIRTHS)
    made_of = STEP.output_lineage(lake, LAST_BIRTHS)
    before = made_of.sources.get(BIRTHS) if made_of is not None else None
    if before is None or before.version > version or before.id != str(lake.open(BIRTHS, version).metadata().id):
        return lake.read(BIRTHS, version)
    since = lake.files_since(BIRTHS, before.version, version)
    last_births = lake.read(LAST_BIRTHS)
    if since is None or not births.last_births_suffice(last_births, messages):
        return lake.read(BIRTHS, version)
    return last_births.unionByName(lake.rows_of(BIRTHS, since).select(*last_births.columns))


def _frames(lake: SparkLake) -> Mapping[str, DataFrame]:
    return {LAST_BIRTHS: births.last_births(lake.read(BIRTHS))}


STEP: Final = SnapshotStep(LAST_BIRTHS, (BIRTHS,), (LAST_BIRTHS,), revision=1, frames=_frames)
