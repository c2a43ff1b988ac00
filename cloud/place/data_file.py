"""Data files of a Delta table: Parquet with page checksums, and their entry for the log.

A file is durable before any log names it; naming it in a log commits it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from cloud.place.limits import PARQUET_COMPRESSION_LEVEL, STATISTICS_TEXT_MAX
from cloud.place.place import LakePlace


def write_data_file(place: LakePlace, row_groups: Iterable[pa.Table], partition: Mapping[str, str]) -> AddAction:
    """Write one data file of a partition, durable on return; return its action for the log.

    There is at least one row group, and all have the same columns, without those of the partition. Raises `OSError`.
    """
    folder = "".join(f"{column}={value}/" for column, value in partition.items())
    path = f"{folder}part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    with place.create(path) as file:
        found = _write_row_groups(file, row_groups)
        size = file.tell()
    modified_ms = time.time_ns() // 1_000_000
    return AddAction(path, size, dict(partition), modified_ms, True, json.dumps(found))


def _write_row_groups(file: IO[bytes], row_groups_: Iterable[pa.Table]) -> dict[str, Any]:
    """Write the content of a data file; return its statistics."""
    found: dict[str, Any] | None = None
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for rows in row_groups_:
            if writer is None:
                writer = stack.enter_context(
                    pq.ParquetWriter(
                        file,
                        rows.schema,
                        compression="zstd",
                        compression_level=PARQUET_COMPRESSION_LEVEL,
                        store_schema=False,
                        write_page_checksum=True,
                    )
                )
            writer.write_table(rows)
            found = statistics(rows) if found is None else merge_statistics(found, statistics(rows))
    if found is None:
        raise ValueError("a data file without rows")
    return found


def merge_statistics(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of all rows from those of two parts."""
    ends: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
    for name in one["nullCount"]:
        # A part without values has no extremes; where one is too long to be recorded, the whole has none.
        those = [each for each in (one, other) if each["nullCount"][name] < each["numRecords"]]
        for key, end in (("minValues", min), ("maxValues", max)):
            if those and all(name in each[key] for each in those):
                ends[key][name] = end(each[key][name] for each in those)
    nulls = {name: count + other["nullCount"][name] for name, count in one["nullCount"].items()}
    return {"numRecords": one["numRecords"] + other["numRecords"], **ends, "nullCount": nulls}


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return Delta's statistics of a file: rows, and minimum, maximum and nulls of the columns that readers prune
    by."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field, column in zip(rows.schema, map(_plain, rows.columns), strict=True):
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind):
            continue  # readers do not prune by these, and JSON has no NaN
        nulls[field.name] = rows[field.name].null_count
        extremes = pc.min_max(column).as_py()
        if pa.types.is_timestamp(kind) and extremes["min"] is not None:
            low[field.name] = _milliseconds(extremes["min"])
            # Readers compare milliseconds: the maximum is rounded up, or rows in its last millisecond would be pruned.
            high[field.name] = _milliseconds(extremes["max"] + datetime.timedelta(microseconds=999))
        elif pa.types.is_string(kind):
            if all(value is not None and len(value) <= STATISTICS_TEXT_MAX for value in extremes.values()):
                low[field.name], high[field.name] = extremes["min"], extremes["max"]
        elif pa.types.is_date(kind) and extremes["min"] is not None:
            low[field.name], high[field.name] = extremes["min"].isoformat(), extremes["max"].isoformat()
        elif extremes["min"] is not None:
            low[field.name], high[field.name] = extremes["min"], extremes["max"]
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column without dictionary; for a dictionary column each value once."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = pc.unique(column)
    return pa.chunked_array([values.dictionary.take(values.indices)])


def _milliseconds(value: datetime.datetime) -> str:
    return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
