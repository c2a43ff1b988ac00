"""Tables of the lake as the pages read them: which ones, their time, and their usual order.

The gold tables are those that `waypost lake run` makes. Their columns are in the tables themselves, so that
nothing of Spark is needed to read them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError

from cloud.place.place import LakePlace
from cloud.reader.limits import BATCH_ROWS, READ_BYTES_MAX
from edge.output.text import word

_TICK: Final = datetime.timedelta(milliseconds=1)
"""Statistics in the log are cut to milliseconds."""
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A derived table. `time`: column by which a span is chosen; `order`: sort keys of a page, Arrow's way."""

    about: str
    time: str | None = None
    order: tuple[tuple[str, str], ...] = ()


_ROLLUP: Final = GoldTable("values per series and time: count, min, max, mean, p50, p95", "window_start")
_LAST: Final = "descending"
_FIRST: Final = "ascending"
GOLD: Final[Mapping[str, GoldTable]] = {
    "rollup_1m": _ROLLUP,
    "rollup_1h": _ROLLUP,
    "rollup_1d": _ROLLUP,
    "anomalies": GoldTable(
        "values that are unusual for their series", "event_time", (("event_time", _LAST), ("sequence", _LAST))
    ),
    "gateway_freshness": GoldTable(
        "last data and delays, per gateway and device", order=(("last_ingested_at", _FIRST), ("gateway", _FIRST))
    ),
    "delivery_slo": GoldTable("messages in the lake within the target", "window_start"),
    "outages": GoldTable(
        "times in which messages waited at their gateway", "began", (("began", _LAST), ("gateway", _FIRST))
    ),
    "throughput": GoldTable("messages received and landed", "bucket"),
    "device_health": GoldTable(
        "silence, battery, clock and radio of devices", order=(("silent_s", _LAST), ("device", _FIRST))
    ),
    "completeness": GoldTable(
        "balance per address", order=(("unexplained", _LAST), ("gateway", _FIRST), ("address", _FIRST))
    ),
    "completeness_hourly": GoldTable("balance per address and hour", "hour"),
    "gaps": GoldTable(
        "ranges of missing messages", order=(("explained", _FIRST), ("missing", _LAST), ("gateway", _FIRST))
    ),
}
"""Tables that pages may read."""


class ReadRefused(Exception):
    """The read has no answer; the message says why and what to do."""


class TableMissing(ReadRefused):
    """The table has not been made yet."""


class LakeTableUnreadable(ReadRefused):
    """The table is damaged, or its place does not answer."""


@dataclass(slots=True)
class ReadBudget:
    """Counts the bytes that one read holds."""

    bytes_max: int = READ_BYTES_MAX
    held: int = 0

    def hold(self, size: int) -> None:
        """Add bytes. Raises `ReadRefused` above the limit."""
        self.held += size
        if self.held > self.bytes_max:
            raise ReadRefused(
                f"this has more than {self.bytes_max // 1_048_576} MB of rows: choose a shorter span, or one gateway"
            )


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows to read: `equal` by column (None: null), and a span of a time column."""

    equal: Mapping[str, Any] = field(default_factory=dict)
    time: str | None = None
    begin: datetime.datetime | None = None
    end: datetime.datetime | None = None

    def excludes(self, least: Mapping[str, Any], most: Mapping[str, Any]) -> bool:
        """Return True if no row can match, by the least and greatest values of columns."""
        for column, value in self.equal.items():
            low, high = least.get(column), most.get(column)
            if low is None or high is None or value is None:
                continue
            if type(low) is type(high) is type(value) and not low <= value <= high:
                return True
        if self.time is None:
            return False
        first, last = _moment(least.get(self.time)), _moment(most.get(self.time))
        before = self.begin is not None and last is not None and last + _TICK < self.begin
        after = self.end is not None and first is not None and first > self.end
        return before or after

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that match."""
        for column, value in self.equal.items():
            rows = batch.column(column)
            batch = batch.filter(rows.is_null() if value is None else pc.equal(rows, pa.scalar(value, rows.type)))
        if self.time is not None:
            times = batch.column(self.time)
            for bound, keeps in ((self.begin, pc.greater_equal), (self.end, pc.less_equal)):
                if bound is not None:
                    batch = batch.filter(keeps(batch.column(self.time), pa.scalar(bound, times.type)))
        return batch


class OpenTable:
    """One table at the version when it was opened."""

    def __init__(self, place: LakePlace, name: str) -> None:
        """Raises `TableMissing`, `ReadRefused`."""
        self.name = name
        self.place = place.at(name)
        try:
            self.delta: deltalake.DeltaTable = self.place.delta()
            self.schema = _as_strings(pa.schema(self.delta.schema().to_arrow()))
            metadata = self.delta.metadata()
        except TableNotFoundError:
            raise TableMissing(
                f"table {name} does not exist: run `waypost lake run --lake {word(place.uri)}`"
            ) from None
        except (DeltaError, OSError) as error:
            raise LakeTableUnreadable(f"table {name} cannot be read: {error}") from error
        self.partitions: Sequence[str] = metadata.partition_columns
        self.state = f"{metadata.id}:{self.delta.version()}"
        """Identity and version."""

    @property
    def columns(self) -> list[str]:
        """Columns for people: not those that only divide the files, nor binary ones."""
        shown = (field for field in self.schema if field.name not in self.partitions)
        return [field.name for field in shown if not pa.types.is_binary(field.type)]

    def files(self) -> list[dict[str, Any]]:
        """Return the data files with size, rows and statistics, as the log has them."""
        found: list[dict[str, Any]] = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        return found

    def written_at(self) -> int | None:
        """Return the time of the last commit, UTC milliseconds."""
        history = self.delta.history(1)
        return int(history[0]["timestamp"]) if history and "timestamp" in history[0] else None

    def newest(self, time: str) -> int | None:
        """Return the time of the newest row, UTC milliseconds, by the statistics of the files."""
        times = [moment for file in self.files() if (moment := _moment(file.get(f"max.{time}"))) is not None]
        return milliseconds(max(times)) if times else None

    def batches(self, columns: Sequence[str], wanted: RowFilter, budget: ReadBudget) -> Iterator[pa.RecordBatch]:
        """Yield matching rows with these columns. Raises `ReadRefused`."""
        needed = list(dict.fromkeys([*columns, *wanted.equal, *([wanted.time] if wanted.time else [])]))
        try:
            for file in self.files():
                least, most = _statistics(file, "min."), _statistics(file, "max.")
                parts = _statistics(file, "partition.")
                if not wanted.excludes(least | parts, most | parts):
                    for batch in self._of_file(unquote(file["path"]), needed, wanted):
                        budget.hold(batch.nbytes)
                        yield batch.select(list(columns))
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise LakeTableUnreadable(f"table {self.name} cannot be read: {error}") from error

    def _of_file(self, path: str, columns: Sequence[str], wanted: RowFilter) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        with pq.ParquetFile(self.place.source(path)) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            groups = [index for index in range(parquet.num_row_groups) if not _group_excluded(parquet, index, wanted)]
            for batch in parquet.iter_batches(BATCH_ROWS, groups, columns=there, use_threads=False):
                mine = wanted.matching(_with_schema(batch, schema))
                if mine.num_rows:
                    yield mine


def milliseconds(moment: datetime.datetime | None) -> int | None:
    """Return UTC milliseconds since 1970."""
    return None if moment is None else (moment - EPOCH) // datetime.timedelta(milliseconds=1)


def moment_of(milliseconds_utc: int | None) -> datetime.datetime | None:
    """Return the time of UTC milliseconds since 1970."""
    return None if milliseconds_utc is None else EPOCH + datetime.timedelta(milliseconds=milliseconds_utc)


def _moment(value: Any) -> datetime.datetime | None:
    if not isinstance(value, datetime.datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def _statistics(file: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in file.items() if name.startswith(prefix)}


def _group_excluded(parquet: pq.ParquetFile, index: int, wanted: RowFilter) -> bool:
    """Return True if the statistics of a row group exclude every row."""
    group, least, most = parquet.metadata.row_group(index), {}, {}
    names = {*wanted.equal, wanted.time}
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema in names and column.is_stats_set and column.statistics.has_min_max:
            least[column.path_in_schema] = column.statistics.min
            most[column.path_in_schema] = column.statistics.max
    return wanted.excludes(least, most)


def _as_strings(schema: pa.Schema) -> pa.Schema:
    """Return a schema without string and binary views, which Arrow's functions support only partly."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([column.with_type(plain.get(column.type, column.type)) for column in schema])


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with these columns; those that an older file lacks are null."""
    there = set(batch.schema.names)
    columns = [
        batch.column(column.name).cast(column.type) if column.name in there else pa.nulls(batch.num_rows, column.type)
        for column in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([column.with_nullable(True) for column in schema]))
