"""Write data files of a table on Spark's executors: each task writes its rows with Arrow, and reports its files.

No reader sees the files before a commit names them (`spark.sink`). A task that is run twice leaves files that no commit
names; maintenance deletes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from cloud.place.data_file import write_data_file
from cloud.place.place import LakePlace
from spark import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of rows that a task gathers before it writes the largest part. Some copies of that are its memory."""
SPLIT_ROWS: Final = 5_000
"""Rows from which on a file of windows ends with a window, so that the next fold rewrites few files."""
_FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("partition", pa.string()),
        ("modified", pa.int64()),
        ("stats", pa.string()),
        ("rows", pa.int64()),
    ]
)
_FILES_SQL: Final = "path string, size bigint, partition string, modified bigint, stats string, rows bigint"
Partition = tuple[tuple[str, str], ...]
"""Partition columns of a file and their values, as in the log."""


@dataclass(frozen=True, slots=True)
class NewFiles:
    """Files that were written for a commit, and the number of their rows."""

    adds: list[AddAction]
    rows: int


def write(rows: DataFrame, place: LakePlace, table: schemas.TableSchema) -> NewFiles:
    """Write rows with the columns of `table` as data files below `place`, in one query of Spark."""
    writer = TaskWriter(place, table.arrow, table.partition_by, table.split_by)
    found = rows.mapInArrow(writer, _FILES_SQL).collect()
    adds = [
        AddAction(one["path"], one["size"], json.loads(one["partition"]), one["modified"], True, one["stats"])
        for one in found
    ]
    return NewFiles(adds, sum(one["rows"] for one in found))


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task; yields a row for each file."""

    place: LakePlace
    columns: pa.Schema
    partition_by: tuple[str, ...]
    split_by: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = _PendingRows()
        for batch in batches:
            if batch.num_rows:
                for partition, rows in split_by_partition(pa.table(batch).cast(self.columns), self.partition_by):
                    held.add(partition, rows)
                    while held.size > FILE_BYTES_MAX:
                        yield self._write_files(*held.pop_largest())
        while held:
            yield self._write_files(*held.pop_largest())
        pa.default_memory_pool().release_unused()  # Spark keeps its workers, and the next task may run in another one

    def _write_files(self, partition: Partition, rows: pa.Table) -> pa.RecordBatch:
        files = [self._write_file(partition, part) for part in self._split(rows)]
        return pa.RecordBatch.from_pylist(files, _FILES)

    def _write_file(self, partition: Partition, rows: pa.Table) -> dict[str, Any]:
        add = write_data_file(self.place, [rows], dict(partition))
        return {
            "path": add.path,
            "size": add.size,
            "partition": json.dumps(dict(partition)),
            "modified": add.modification_time,
            "stats": add.stats,
            "rows": rows.num_rows,
        }

    def _split(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Divide rows between two values of the split column, into files of `SPLIT_ROWS` at least."""
        if self.split_by is None or rows.num_rows < 2 * SPLIT_ROWS:
            yield rows
            return
        rows = rows.sort_by(self.split_by)
        counts = pc.value_counts(rows[self.split_by]).field("counts").to_pylist()  # in the order of the rows
        begin = end = 0
        for count in counts:
            end += count
            if end - begin >= SPLIT_ROWS and rows.num_rows - end >= SPLIT_ROWS:
                yield rows.slice(begin, end - begin)
                begin = end
        yield rows.slice(begin)


class _PendingRows:
    """Rows of a task that are not in a file yet, by partition."""

    def __init__(self) -> None:
        self._parts: dict[Partition, list[pa.Table]] = {}
        self._sizes: dict[Partition, int] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def add(self, partition: Partition, rows: pa.Table) -> None:
        self._parts.setdefault(partition, []).append(rows)
        self._sizes[partition] = self._sizes.get(partition, 0) + rows.nbytes

    def pop_largest(self) -> tuple[Partition, pa.Table]:
        partition = max(self._sizes, key=self._sizes.__getitem__)
        del self._sizes[partition]
        return partition, pa.concat_tables(self._parts.pop(partition))


def split_by_partition(rows: pa.Table, partition_by: Iterable[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield each partition that has rows, and its rows without the partition columns."""
    names = list(partition_by)
    if not names:
        yield (), rows
        return
    for key in rows.select(names).group_by(names).aggregate([]).to_pylist():
        chosen = rows
        for column, value in key.items():
            chosen = chosen.filter(pc.equal(chosen[column], pa.scalar(value, chosen[column].type)))
        yield tuple((name, partition_text(value)) for name, value in key.items()), chosen.drop_columns(names)


def partition_text(value: object) -> str:
    """Return a partition's value as in the log. No table is partitioned by a nullable column."""
    return str(value).lower() if isinstance(value, bool) else str(value)
