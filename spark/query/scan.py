"""Delta table as DuckDB scans it: at one version, only the files, columns and rows that the query needs.

delta-rs reads the log and names the data files. DuckDB passes columns and comparisons to `scanner`. A file is not
opened if its partition excludes a comparison. Row groups that Parquet's statistics exclude are not read. Files are read
one after the other: memory holds some batches of one file, and no thread continues after a query has ended.

The statistics of the Delta log are not used: those of columns with NaN or infinite numbers are incomplete there, and
pyarrow trusts them, so that `value < 3` would return wrong rows (a test compares).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
from pyarrow import compute

from spark import table_errors
from spark.query.limits import SCAN_READAHEAD, SCAN_ROWS


class DeltaScan(arrow_dataset.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """Rows of a table at the version it was opened at.

    `failure`: why its rows could not be read; DuckDB passes on only its text.
    """

    failure: table_errors.TableUnreadable | None = None

    def __init__(self, name: str, table: deltalake.DeltaTable) -> None:
        files = table.to_pyarrow_dataset()
        columns = [files.schema.field(column) for column in table.metadata().partition_columns]
        fragments = [
            files.format.make_fragment(
                file.path, filesystem=file.filesystem, partition_expression=_partition(file, columns)
            )
            for file in files.get_fragments()
        ]
        super().__init__(fragments, files.schema, files.format, files.filesystem)
        self.name = name

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> FileScan:  # noqa: A002
        """Return a scan of these columns of the matching rows; DuckDB calls it once for each use of the table."""
        return FileScan(self, self.schema.names if columns is None else list(columns), filter)


def _partition(file: Any, columns: Sequence[pa.Field]) -> Any:
    """Return the condition that the partition of a file fulfils; None for a table without partitions."""
    values = arrow_dataset.get_partition_keys(file.partition_expression)
    parts = [
        compute.field(column.name).is_null()
        if values.get(column.name) is None
        else compute.field(column.name) == pa.scalar(values[column.name], column.type)
        for column in columns
    ]
    return functools.reduce(operator.and_, parts) if parts else None


class FileScan:
    """One pass over the files of a table."""

    def __init__(self, table: DeltaScan, columns: list[str], chosen: Any) -> None:
        self._table = table
        self._columns = columns
        self._chosen = chosen

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches, each read on demand."""
        schema = pa.schema([self._table.schema.field(name) for name in self._columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with table_errors.translate_errors(self._table.name, "rows"):
                for file in self._table.get_fragments(self._chosen):
                    yield from file.to_batches(
                        self._table.schema,
                        self._columns,
                        self._chosen,
                        batch_size=SCAN_ROWS,
                        batch_readahead=SCAN_READAHEAD,
                        use_threads=False,
                    )
        except table_errors.TableUnreadable as error:
            self._table.failure = error
            raise
