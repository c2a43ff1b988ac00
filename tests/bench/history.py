"""A lake with a long history without the wait: one day goes through the jobs, and the others are copies.

A day of this fleet is a quarter of a million messages of two values. `grow` repeats it in the landed tables and in
derived ones, with each job's marker of its progress. Rows without a time, such as the newest state of a gateway, are
moved to the end. A pass then finds the rows, files and states of a lake after all those days.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties
from numpy.typing import NDArray

from cloud.place.place import place_of
from spark import schemas
from spark.jobs import catalog
from spark.jobs.checkpoint import FOLDER
from spark.jobs.stream import StreamStep
from spark.lineage import TableLineage, TableState

GATEWAYS, DEVICES = 42, 5
SERIES: Final = GATEWAYS * DEVICES
"""Devices, each with its own address."""
EVERY_S: Final = 72
"""Seconds between two messages of a device."""
HOUR_STEPS: Final = 3_600 // EVERY_S
DAY_STEPS: Final = 24 * HOUR_STEPS
DAY_MESSAGES: Final = SERIES * DAY_STEPS
METRICS: Final = ("temperature", "humidity")
START: Final = datetime(2026, 3, 14, tzinfo=UTC)
_LANDS_AFTER_US: Final = 1_500_000
_DAY_US: Final = 86_400_000_000
_SEQUENCES: Final = ("sequence", "first_sequence", "last_sequence")
_COUNTS: Final = ("rows", "late_rows", "suspect_rows", "judged")
"""Columns of tables with a row for each gateway, device or series, which count all days."""
_USUAL: Final = {"tenant": "default", "epoch": "e1", "clock_quality": "good"}


def land(lake: Path, first: int, steps: int) -> int:
    """Land the fleet's messages and statuses from step `first` on, as one commit; return the messages."""
    step, series = _each(range(first, first + steps))
    at, landed = _time_us(step) + series * 1_000, _time_us(first + steps) + _LANDS_AFTER_US
    append(
        lake,
        "telemetry",
        len(step),
        _of_series(series)
        | {
            "sequence": step,
            "event_time": at,
            "received_at": at + 2_000,
            "ingested_at": np.full(len(step), landed),
            "lane": "live",
            "body": _bodies(step, series),
        },
    )
    _land_statements(lake, [low for low in range(first, first + steps) if (low + 1) % HOUR_STEPS == 0])
    append(
        lake,
        "gateway_status",
        GATEWAYS,
        {
            "gateway": _numbered("gateway", np.arange(GATEWAYS)),
            "reported_at": np.full(GATEWAYS, landed),
            "ingested_at": np.full(GATEWAYS, landed + 20_000_000),
            "state": "running",
            "backlog_messages": np.zeros(GATEWAYS, "int64"),
        },
    )
    return len(step)


def _land_statements(lake: Path, last_steps: list[int]) -> None:
    """Land the manifests of the hours that end with these steps."""
    if not last_steps:
        return
    last, series = _each(last_steps)
    first, until = last + 1 - HOUR_STEPS, _time_us(last + 1)
    append(
        lake,
        "manifests",
        len(last),
        _of_series(series)
        | {
            "hour": _time_us(first),
            "first_sequence": first,
            "last_sequence": last,
            "count": last + 1 - first,
            "digest": "-",
            "ingested_at": until + 5_000_000,
            "until": until,
        },
    )


def grow(lake: Path, days: int) -> None:
    """Extend a lake of one processed day to `days` days. Tables that a job rebuilds completely are left to the next
    pass.
    """
    steps = [step for job in catalog.JOBS for step in job.steps]
    kept = {name for step in steps if isinstance(step, StreamStep) for name in step.outputs}
    for name in place_of(lake).tables():
        if name in schemas.LANDED or name in kept:
            _grow_table(lake / name, days)
    for step in steps:
        if isinstance(step, StreamStep) and (lake / step.source).exists():
            _mark(lake, step)
    for name in place_of(lake).tables():  # as maintenance does, so that logs have their usual length
        deltalake.DeltaTable(lake / name).create_checkpoint()


def _grow_table(path: Path, days: int) -> None:
    table = deltalake.DeltaTable(path)
    contract = (schemas.LANDED | schemas.DERIVED)[path.name]
    times = {name for name in contract.keys if pa.types.is_temporal(contract.arrow.field(name).type)}
    rows = table.to_pyarrow_table()
    if contract.keys and not times:  # one row each, independent of time
        _write(table, contract, _moved(rows, days), "overwrite")
        return
    for number in range(1, days):
        _write(table, contract, _shifted(rows, number), "append")


def _shifted(rows: pa.Table, days: int) -> pa.Table:
    """Return the same rows some days later."""
    for number, field in enumerate(rows.schema):
        column = rows.column(number)
        if pa.types.is_temporal(field.type):
            unit = days if pa.types.is_date(field.type) else days * _DAY_US
            kind = pa.int32() if pa.types.is_date(field.type) else pa.int64()
            column = pc.add(column.cast(kind), pa.scalar(unit, kind)).cast(field.type)
        elif field.name in _SEQUENCES:
            column = pc.add(column, days * DAY_STEPS)
        rows = rows.set_column(number, field, column)
    return rows


def _moved(rows: pa.Table, days: int) -> pa.Table:
    """Return the rows of one day as they are after `days` such days."""
    later = _shifted(rows, days - 1)
    for name in rows.column_names:
        at = rows.column_names.index(name)
        if name.startswith("first_"):
            later = later.set_column(at, rows.schema.field(at), rows.column(at))
        elif name in _COUNTS:
            later = later.set_column(at, rows.schema.field(at), pc.multiply(rows.column(at), days))
    return later


def _mark(lake: Path, step: StreamStep) -> None:
    """Record in checkpoint and outputs of a step that one more batch has processed its whole source."""
    (checkpoint,) = (lake / FOLDER / step.name).glob("*")
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    *head, offset = (checkpoint / "offsets" / str(last)).read_text().splitlines()
    source = deltalake.DeltaTable(lake / step.source)
    taken = json.loads(offset) | {"reservoirVersion": source.version() + 1, "index": -1, "isStartingVersion": False}
    (checkpoint / "offsets" / str(last + 1)).write_text("\n".join([*head, json.dumps(taken)]))
    shutil.copy(checkpoint / "commits" / str(last), checkpoint / "commits" / str(last + 1))
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    made_of = TableLineage({step.source: TableState(str(source.metadata().id), source.version())})
    for name in step.outputs:
        table = deltalake.DeltaTable(lake / name)
        said = CommitProperties(
            custom_metadata={"userMetadata": made_of.text()}, app_transactions=[deltalake.Transaction(query, last + 1)]
        )
        partitions = list(schemas.DERIVED[name].partition_by)
        table.create_write_transaction([], "append", table.schema(), partitions, commit_properties=said)


def append(lake: Path, name: str, count: int, columns: Mapping[str, Any]) -> None:
    """Append `count` rows to a landed table; missing columns have their usual value, or null."""
    contract = schemas.LANDED[name]
    whole = _USUAL | {"ingest_date": columns["ingested_at"] // _DAY_US, **columns}
    schema = contract.arrow
    made = []
    for field in schema:
        value = whole.get(field.name)
        repeated = value is None or isinstance(value, str)
        if repeated:
            made.append(pa.repeat(pa.scalar(value, field.type), count))
            continue
        kind = pa.int32() if pa.types.is_date(field.type) else None
        made.append(pa.array(value).cast(kind or pa.array(value).type).cast(field.type))
    deltalake.write_deltalake(
        lake / name, pa.Table.from_arrays(made, schema=schema), mode="append", partition_by=list(contract.partition_by)
    )


def _write(
    table: deltalake.DeltaTable, contract: schemas.TableSchema, rows: pa.Table, mode: Literal["append", "overwrite"]
) -> None:
    deltalake.write_deltalake(table, rows, mode=mode, partition_by=list(contract.partition_by))


def _each(steps: Iterable[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each of these steps with each series, in time order."""
    step, series = np.meshgrid(np.array(list(steps), "int64"), np.arange(SERIES), indexing="ij")
    return step.ravel(), series.ravel()


def _time_us(step: Any) -> Any:
    return (int(START.timestamp()) + step * EVERY_S) * 1_000_000


def _of_series(series: NDArray[np.int64]) -> dict[str, Any]:
    gateway, device = series // DEVICES, series % DEVICES
    return {
        "gateway": _numbered("gateway", gateway),
        "address": _numbered("plant", device),
        "device": _numbered("device", device),
    }


def _numbered(name: str, numbers: NDArray[np.int64]) -> pa.Array:
    names = pa.array([f"{name}-{number:02}" for number in range(int(numbers.max()) + 1)])
    return names.take(pa.array(numbers))


def _bodies(step: NDArray[np.int64], series: NDArray[np.int64]) -> pa.Array:
    """Build JSON objects of `METRICS`: a slow wave each, with reproducible noise."""
    randoms = np.random.default_rng(int(step[0]))
    parts: list[Any] = []
    for number, metric in enumerate(METRICS):
        noise = randoms.normal(0, 2, len(step))
        value = 60 + 15 * np.sin(step / 500 + series + number) + noise
        parts += [f', "{metric}": ' if number else f'{{"{metric}": ', pa.array(np.round(value, 2)).cast(pa.string())]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())
