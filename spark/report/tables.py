"""The tables of a snapshot as Arrow, whole or of one gateway. A missing table has no rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import get_partition_keys
from pyarrow.parquet import filters_to_expression

from spark import table_errors
from spark.report.snapshot import ReportSnapshot

Gateway = tuple[str, str]
"""Tenant and gateway."""
_WHOLE = pa.decimal128(38, 0)
_PARTLY_GROUPED_ROWS: Final = 200_000
"""Number of separately grouped rows from which on they are combined: about 20 MB."""
_AGAIN: Final = {"count": "sum"}
"""Function that combines partial results, if it differs from the function that made them."""
Aggregate = tuple[str, str]
"""Column and function: `sum`, `count`, `min` or `max`."""
Filter = tuple[str, str, object]
"""Column, comparison, value."""


class ReportTables:
    """`only`: read rows of this gateway, from tables that have gateways."""

    def __init__(self, taken: ReportSnapshot, only: Gateway | None = None) -> None:
        self._taken = taken
        self.only = only

    def has(self, name: str) -> bool:
        """Return whether the table exists."""
        return name in self._taken.tables

    def rows_in_all(self, name: str) -> int:
        """Return the rows of the whole table by the statistics in the log."""
        table = self._taken.tables.get(name)
        return int(table.count()) if table is not None else 0

    def count(self, name: str) -> int:
        """Count the rows of one gateway or all by reading them. Raises `TableUnreadable`."""
        return sum(part.num_rows for part in self.parts(name, ("gateway",)))

    def read(self, name: str, columns: Sequence[str], *where: Filter) -> pa.Table:
        """Return these columns; without rows if the table is missing. Raises `TableUnreadable`."""
        table = self._table(name, columns)
        if table is None:
            return pa.table({column: pa.nulls(0) for column in columns})
        with table_errors.translate_errors(name, "rows"):
            return table.to_pyarrow_table(columns=list(columns), filters=[*self._gateway_filter(table), *where] or None)

    def parts(self, name: str, columns: Sequence[str], *where: Filter) -> Iterator[pa.Table]:
        """Yield these columns in parts of some thousand rows, for tables too large for memory."""
        table = self._table(name, columns)
        if table is None:
            return
        with table_errors.translate_errors(name, "rows"):
            filters = [*self._gateway_filter(table), *where]
            chosen = filters_to_expression(filters) if filters else None
            dataset = table.to_pyarrow_dataset()
            # File by file: a scanner of the dataset reads ahead, hundreds of megabytes of a large table.
            for file in dataset.get_fragments(chosen):
                for batch in file.to_batches(dataset.schema, list(columns), chosen, use_threads=False):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])

    def newest(self, name: str, columns: Sequence[str], rows_max: int, *where: Filter) -> Iterator[pa.Table]:
        """Yield parts of the newest files by `event_date` until the given number of rows was read."""
        table = self._table(name, columns)
        if table is None:
            return
        with table_errors.translate_errors(name, "rows"):
            dataset = table.to_pyarrow_dataset()
            chosen = filters_to_expression([*self._gateway_filter(table), *where])
            files = sorted(dataset.get_fragments(chosen), key=_event_date, reverse=True)
            for file in files:
                if rows_max <= 0:
                    return
                rows_max -= file.count_rows()
                yield file.to_table(dataset.schema, list(columns), chosen, use_threads=False)

    def _table(self, name: str, columns: Sequence[str]) -> deltalake.DeltaTable | None:
        table = self._taken.tables.get(name)
        lacks = set(columns) - {field.name for field in table.schema().fields} if table is not None else None
        if lacks:
            raise table_errors.make_unreadable(name, ValueError(f"it has no column {min(lacks)}"), "columns")
        return table

    def existing_columns(self, name: str, *columns: str) -> list[str]:
        """Return those of these columns that a table has; a table of an older Waypost may lack some."""
        table = self._taken.tables.get(name)
        present = {field.name for field in table.schema().fields} if table is not None else set(columns)
        return [column for column in columns if column in present]

    def _gateway_filter(self, table: deltalake.DeltaTable) -> list[Filter]:
        if self.only is None or "gateway" not in table.schema().to_arrow().names:
            return []
        return [("tenant", "=", self.only[0]), ("gateway", "=", self.only[1])]

    def rows(self, name: str, columns: Sequence[str], *where: Filter) -> list[dict[str, Any]]:
        """Yield rows of a small table."""
        rows: list[dict[str, Any]] = self.read(name, columns, *where).to_pylist()
        return rows


def _event_date(file: Any) -> date:
    """Return the day of a data file of a table that is partitioned by it."""
    found: date | None = get_partition_keys(file.partition_expression).get("event_date")
    return found or date.min


def group_by_gateway(parts: Iterable[pa.Table], *aggregates: Aggregate) -> dict[Gateway, dict[str, Any]]:
    """Return parts with columns `tenant` and `gateway`, `grouped` by gateway."""
    return {(row["tenant"], row["gateway"]): row for row in group(parts, ("tenant", "gateway"), *aggregates)}


def group(parts: Iterable[pa.Table], names: Sequence[str], *aggregates: Aggregate) -> list[dict[str, Any]]:
    """Return one row per value of these columns; the others are named `<column>_<function>`.

    Sums are exact, as in `total`. Memory grows with the number of values, not of rows.
    """
    made = [f"{column}_{function}" for column, function in aggregates]
    held: list[pa.Table] = []
    for part in (part for part in parts if part.num_rows):
        exact = _to_decimals(part, [column for column, function in aggregates if function == "sum"])
        held.append(_aggregate(exact, names, aggregates, made))
        if sum(map(len, held)) > _PARTLY_GROUPED_ROWS:
            held = [_combine(held, names, aggregates, made)]
    return [_to_integers(row) for row in _combine(held, names, aggregates, made).to_pylist()] if held else []


def _combine(
    parts: Sequence[pa.Table], names: Sequence[str], aggregates: Sequence[Aggregate], made: Sequence[str]
) -> pa.Table:
    again = [(name, _AGAIN.get(function, function)) for name, (_, function) in zip(made, aggregates, strict=True)]
    return _aggregate(pa.concat_tables(parts), names, again, made)


def _aggregate(rows: pa.Table, names: Sequence[str], aggregates: Sequence[Aggregate], made: Sequence[str]) -> pa.Table:
    found = rows.group_by(list(names), use_threads=False).aggregate(list(aggregates))
    columns = (*names, *(f"{column}_{function}" for column, function in aggregates))
    return found.select(columns).rename_columns([*names, *made])


def _to_decimals(table: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        if pa.types.is_int64(table[name].type):
            table = table.set_column(table.schema.get_field_index(name), name, pc.cast(table[name], _WHOLE))
    return table


def _to_integers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: int(each) if isinstance(each, Decimal) else each for name, each in row.items()}


class Worst(NamedTuple):
    """The first rows in an order, and the number of all rows."""

    rows: list[dict[str, Any]]
    total: int


def take_worst(parts: Iterable[pa.Table], rows_max: int, *keys: tuple[str, str]) -> Worst:
    """Return the first rows in this order; `keys` are columns with `ascending` or `descending`.

    Memory holds these rows and one part.
    """
    held: list[pa.Table] = []
    total = 0
    for part in parts:
        total += part.num_rows
        together = pa.concat_tables([*held, part])
        held = [together.take(pc.sort_indices(together, sort_keys=list(keys))[:rows_max])]
    return Worst(held[0].to_pylist() if held else [], total)


def total(table: pa.Table, column: str) -> int:
    """Return the exact sum of a column of whole numbers; nulls do not count.

    Two statements of one gateway can fill 64 bits; a sum in 64 bits would become negative.
    """
    found = pc.sum(pc.cast(table[column], _WHOLE)).as_py() if table.num_rows else None
    return int(found or 0)


def seconds(at: datetime | None) -> float | None:
    """Return seconds since 1970."""
    return None if at is None else at.timestamp()


def unix_seconds(column: pa.ChunkedArray) -> Any:
    """Return a column of times as an array of seconds since 1970."""
    return pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64()).to_numpy() / 1e6


def gateway_codes(table: pa.Table) -> tuple[Any, list[Gateway]]:
    """Return a number for each row's gateway, and the gateways by number."""
    joined = pc.binary_join_element_wise(table["tenant"], table["gateway"], "\x1f").combine_chunks().dictionary_encode()
    names: Iterable[str] = joined.dictionary.to_pylist()
    return joined.indices.to_numpy(), [(tenant, name) for tenant, _, name in (each.partition("\x1f") for each in names)]
