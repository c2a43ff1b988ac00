"""Compaction of small data files, so that a trickle does not cost readers, log and checkpoints a file a second.

A version that removes files and adds the same rows in others changes no data (`dataChange` false): readers that follow
the table's commits skip it. delta-rs can write such a version too, but syncs neither file nor log, so acknowledged rows
would be in files that a power cut may destroy.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from cloud.lake.entries import add_action, as_entry
from cloud.lake.limits import (
    COMPACTED_BYTES_MAX,
    COMPACTED_FILES_MAX,
    COMPACTED_FILES_MIN,
    COMPACTED_ROWS_MAX,
    ROW_GROUP_BYTES,
    SMALL_FILE_BYTES_MAX,
    SMALL_FILE_ROWS_MAX,
)


class SmallFile(NamedTuple):
    """Data file as in the log, with the values of its partition."""

    partition: tuple[tuple[str, str], ...]
    path: str
    size: int
    rows: int


def small_files(table: DeltaTable, partition_by: Sequence[str], without: Container[str] = ()) -> list[SmallFile]:
    """Return the small files of one partition, the oldest first; none if they are too few. They may be more than one
    compaction takes (`select_files`).

    `without`: files to skip.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    keys = [actions[f"partition.{column}"].to_pylist() for column in partition_by]
    columns = (actions[name].to_pylist() for name in ("modification_time", "path", "size_bytes", "num_records"))
    found: dict[tuple[tuple[str, str], ...], list[SmallFile]] = {}
    for (_, path, size, rows), *values in sorted(
        zip(zip(*columns, strict=True), *keys, strict=True), key=lambda row: row[0]
    ):
        # Without statistics, which we always write, the cost of reading is unbounded.
        small = size <= SMALL_FILE_BYTES_MAX and rows is not None and rows <= SMALL_FILE_ROWS_MAX
        if small and path not in without:
            partition = tuple((column, str(value)) for column, value in zip(partition_by, values, strict=True))
            found.setdefault(partition, []).append(SmallFile(partition, path, size, rows))
    most = max(found.values(), key=len, default=[])
    return most if len(most) >= COMPACTED_FILES_MIN else []


def select_files(files: Sequence[SmallFile]) -> list[SmallFile]:
    """Return the first files, as many as one compaction takes."""
    taken, size, rows = [], 0, 0
    for file in files[:COMPACTED_FILES_MAX]:
        size += file.size
        rows += file.rows
        if size > COMPACTED_BYTES_MAX or rows > COMPACTED_ROWS_MAX:
            break
        taken.append(file)
    return taken


def row_groups(files: Iterable[pa.Table], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files in tables of the size of a row group. A column that older files lack is null."""
    waiting: list[pa.Table] = []
    for rows in files:
        there = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in columns
        ]
        waiting.append(pa.table(there, schema=columns))
        if sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def log_entry(removed: Sequence[SmallFile], added: AddAction, now_ms: int) -> bytes:
    """Return a log entry that replaces `removed` with `added`, with the same rows."""
    metrics = {"numFilesRemoved": str(len(removed)), "numFilesAdded": "1"}
    info = {"timestamp": now_ms, "operation": "OPTIMIZE", "operationParameters": {}, "operationMetrics": metrics}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    for file in removed:
        action = {"path": file.path, "deletionTimestamp": now_ms, "dataChange": False, "extendedFileMetadata": True}
        actions.append({"remove": action | {"partitionValues": dict(file.partition), "size": file.size}})
    actions.append({"add": add_action(added, data_change=False)})
    return as_entry(actions)
