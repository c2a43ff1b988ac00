"""Reader of a lake for a proof: one file at a time, only the files and columns needed."""

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
from cloud.place.place import LakeLocation, LakePlace, place_of
from cloud.proof.limits import ROWS_A_BATCH


@dataclass(frozen=True, slots=True)
class ReadScope:
    """Part of a table to read: rows of some gateways, ingested from a day on."""

    gateway: str | None = None
    since: datetime.date | None = None
    part: int = 0
    parts: int = 1
    """Number of parts that the gateways are divided into by name; `part` is the one to read."""
    tenant: str | None = None

    def has(self, gateway: str) -> bool:
        """Return whether a gateway is in the scope."""
        if self.gateway is not None:
            return gateway == self.gateway
        return self.parts == 1 or zlib.crc32(gateway.encode()) % self.parts == self.part


class LakeMissing(LakeError):
    """The place has no lake."""


class ProofLakeReader:
    """Tables of one lake, each at the version when it is opened."""

    def __init__(self, lake: LakeLocation) -> None:
        """Raises `LakeMissing` when the place is not a lake."""
        self._place = place_of(lake)
        self.bytes = 0
        """Bytes of the files read."""
        try:
            there = self._place.at("telemetry").is_table()
        except OSError as error:
            raise LakeError(str(error)) from error
        if not there:
            raise LakeMissing(f"{self._place.uri} is not a lake: it has no table `telemetry`")

    def batches(self, table: str, columns: Sequence[str], scope: ReadScope) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a scope with these columns, if the files have them; nothing for a missing table.

        Raises `LakeError`.
        """
        try:
            place = self._place.at(table)
            for path in self._files(place.delta(), scope):
                yield from self._of_file(place, path, columns, scope)
        except TableNotFoundError:
            return
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise LakeError(f"table {table} cannot be read: {error}") from error

    def _files(self, delta: DeltaTable, scope: ReadScope) -> Iterator[str]:
        """Yield the files that may have rows of the scope, by partition and statistics."""
        actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        for action in actions:
            day, low, high = action.get("partition.ingest_date"), action.get("min.gateway"), action.get("max.gateway")
            early = scope.since is not None and day is not None and _day(day) < scope.since
            other = scope.gateway is not None and None not in (low, high) and not low <= scope.gateway <= high
            if not early and not other:
                self.bytes += action["size_bytes"]
                yield unquote(action["path"])

    def _of_file(
        self, place: LakePlace, path: str, columns: Sequence[str], scope: ReadScope
    ) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(place.source(path)) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(ROWS_A_BATCH, columns=there):
                mine = _of_scope(_without_views(batch), scope)
                if mine.num_rows:
                    yield mine

    def rows(self, table: str, columns: Sequence[str], scope: ReadScope) -> Iterator[dict[str, Any]]:
        """Yield rows as dictionaries; columns that a file lacks are None."""
        for batch in self.batches(table, columns, scope):
            for row in batch.to_pylist():
                yield {name: row.get(name) for name in columns}


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert string views, which delta-rs writes in compaction, to strings: Arrow supports views only partly."""
    views = pa.types.is_string_view
    fields = [field.with_type(pa.string()) if views(field.type) else field for field in batch.schema]
    return batch.cast(pa.schema(fields))


def _of_scope(batch: pa.RecordBatch, scope: ReadScope) -> pa.RecordBatch:
    if scope.tenant is not None:
        batch = batch.filter(pc.equal(batch.column("tenant"), scope.tenant))
    if scope.gateway is None and scope.parts == 1:
        return batch
    names = batch.column("gateway").dictionary_encode()
    wanted: Callable[[str], bool] = scope.has
    mine = pa.array([wanted(name) for name in names.dictionary.to_pylist()], pa.bool_())
    return batch.filter(pc.take(mine, names.indices))


def _day(day: datetime.date | str) -> datetime.date:
    return day if isinstance(day, datetime.date) else datetime.date.fromisoformat(day)
