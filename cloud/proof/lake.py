"""Reading a lake for a proof: file by file, only files and columns that matter."""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cloud.lake.faults import LakeError
from cloud.place.place import Place, Somewhere, place_of
from cloud.proof.limits import ROWS_A_BATCH


@dataclass(frozen=True, slots=True)
class Window:
    """What of a table is read: rows of some gateways, ingested from a day on."""

    gateway: str | None = None
    since: datetime.date | None = None
    part: int = 0
    parts: int = 1
    """Of the gateways, those whose name falls into this part of so many."""

    def has(self, gateway: str) -> bool:
        """The gateway is one of them."""
        if self.gateway is not None:
            return gateway == self.gateway
        return self.parts == 1 or zlib.crc32(gateway.encode()) % self.parts == self.part


class LakeReader:
    """The tables of one lake as they are when each is opened."""

    def __init__(self, lake: Somewhere) -> None:
        """Raises `LakeError` when there is no lake."""
        self._place = place_of(lake)
        self.bytes = 0
        """Of the files that were read."""
        try:
            there = self._place.at("telemetry").is_table()
        except OSError as error:
            raise LakeError(str(error)) from error
        if not there:
            raise LakeError(f"{self._place.uri} is no lake: it has no table `telemetry`")

    def batches(self, table: str, columns: Sequence[str], window: Window) -> Iterator[pa.RecordBatch]:
        """These columns, as far as the files have them, of the rows of a window; nothing where there is no such table.

        Raises `LakeError`.
        """
        try:
            place = self._place.at(table)
            for path in self._files(place.delta(), window):
                yield from self._of_file(place, path, columns, window)
        except TableNotFoundError:
            return
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise LakeError(f"table {table} cannot be read: {error}") from error

    def _files(self, delta: DeltaTable, window: Window) -> Iterator[str]:
        """Of the partitions, and by the statistics in the log."""
        actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        for action in actions:
            day, low, high = action.get("partition.ingest_date"), action.get("min.gateway"), action.get("max.gateway")
            early = window.since is not None and day is not None and _day(day) < window.since
            other = window.gateway is not None and None not in (low, high) and not low <= window.gateway <= high
            if not early and not other:
                self.bytes += action["size_bytes"]
                yield unquote(action["path"])

    def _of_file(self, place: Place, path: str, columns: Sequence[str], window: Window) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(place.source(path)) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(ROWS_A_BATCH, columns=there):
                mine = _of_window(_plainly(batch), window)
                if mine.num_rows:
                    yield mine

    def rows(self, table: str, columns: Sequence[str], window: Window) -> Iterator[dict[str, Any]]:
        """As dictionaries; what a file does not have is None."""
        for batch in self.batches(table, columns, window):
            for row in batch.to_pylist():
                yield {name: row.get(name) for name in columns}


def _plainly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Files that delta-rs wrote anew (compaction) say that their texts are views, of which Arrow can do less."""
    views = pa.types.is_string_view
    fields = [field.with_type(pa.string()) if views(field.type) else field for field in batch.schema]
    return batch.cast(pa.schema(fields))


def _of_window(batch: pa.RecordBatch, window: Window) -> pa.RecordBatch:
    if window.gateway is None and window.parts == 1:
        return batch
    names = batch.column("gateway").dictionary_encode()
    wanted: Callable[[str], bool] = window.has
    mine = pa.array([wanted(name) for name in names.dictionary.to_pylist()], pa.bool_())
    return batch.filter(pc.take(mine, names.indices))


def _day(day: datetime.date | str) -> datetime.date:
    return day if isinstance(day, datetime.date) else datetime.date.fromisoformat(day)
