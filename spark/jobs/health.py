"""`health`: readings -> device_days -> device_health.

A device's health is of the last days of its gateway, and of nothing else. So a pass makes those devices anew whose
gateways have something new, and reads their last days; all others stay as they are, and so do the days before.

On one machine both are made in this process, column by column (`spark.here`); on a cluster, and where it is too much
for a process, by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark import schemas
from spark.delta_log import File
from spark.here import device_days, device_health
from spark.jobs import changes
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.snapshot import Snapshot, held
from spark.provenance import Provenance, State
from spark.tables import Lake
from spark.transforms import health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


HERE_MAX: Final = 4_000_000
"""Readings of a batch whose columns are held in this process: 400 MB."""
DEVICES_MAX: Final = 500_000
"""Rows of `device_health` that are held in this process beside what becomes of them: 300 MB."""
_EVENT_DATE: Final = re.compile("event_date=([0-9]+-[0-9]+-[0-9]+)")


def _take(batch: Batch) -> None:
    parts = batch.here(device_days.READING) if batch.count <= HERE_MAX else None
    if parts is None:
        batch.fold("device_days", health.days(batch.aside(batch.rows)), health.FOLD)
    else:
        # All at once: a message is counted once, and may be in two parts.
        days = device_days.days(pa.concat_tables(parts))
        batch.fold_here("device_days", days, device_days.combined, health.FOLD)


def _frames(lake: Lake) -> Mapping[str, DataFrame] | Mapping[str, pa.Table]:
    days = device_health.recent(lake.read_here("device_days", device_health.DAY)) if lake.here else None
    if days is not None:
        return {"device_health": device_health.health(days)}
    return {"device_health": health.health(lake.read("device_days")).coalesce(1)}


def _update(lake: Lake, there: State, made_of: Provenance) -> Mapping[str, pa.Table] | None:
    """`device_health` as `_frames` makes it: its rows as they are, and those made anew whose last days have changed."""
    since = changes.since(lake, "device_days", made_of.sources["device_days"]) if lake.here else None
    devices = held(lake, "device_health", there, DEVICES_MAX) if since is not None else None
    if since is None or devices is None:
        return None
    heard = lake.columns_of("device_days", since.changed, device_health.HEARD)
    gateways = device_health.changed(heard, devices)
    days = device_health.recent(_last_days(lake, since.files, gateways))
    if days is None:
        return None
    parts = (device_health.of_others(devices, gateways), device_health.health(days))
    return {"device_health": pa.concat_tables([part.cast(schemas.DEVICE_HEALTH.arrow) for part in parts])}


def _last_days(lake: Lake, files: Sequence[File], gateways: pa.Table) -> Iterator[pa.Table]:
    """Parts of `device_days` that have the last days of these gateways, and only those of them."""
    dates = device_health.dates(gateways)
    chosen = [file for file in files if (day := _date(file)) is None or day in dates] if len(gateways) else []
    for part in lake.columns_of("device_days", chosen, device_health.DAY):
        yield device_health.of_gateways(part, gateways)


def _date(file: File) -> date | None:
    """Of the rows of a file of `device_days`; None where its path does not say."""
    found = _EVENT_DATE.fullmatch(changes.folder(file.path))
    return date.fromisoformat(found[1]) if found is not None else None


JOB = Job(
    "health",
    "battery, silence, reboots, clock and radio of each device",
    (
        Following("device_days", "readings", ("device_days",), revision=3, take=_take),
        Snapshot("device_health", ("device_days",), ("device_health",), revision=1, frames=_frames, update=_update),
    ),
)
