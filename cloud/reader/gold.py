"""Rows of gold tables: points of a chart, pages of a table, CSV, and the series that have values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud.place.place import LakePlace
from cloud.reader.documents import GoldPage, GoldTableList, GoldTableRow, SeriesPage, SeriesRow
from cloud.reader.limits import CSV_ROWS_MAX, POINTS_MAX, ROWS_DEFAULT, ROWS_MAX, SERIES_MAX
from cloud.reader.requests import ROLLUPS, GoldRows, SeriesList
from cloud.reader.tables import GOLD, OpenTable, ReadBudget, ReadRefused, RowFilter, milliseconds, moment_of
from edge.output.text import word

NAMES: Final = ("tenant", "gateway", "device", "address", "metric")
"""Columns that name things; a search looks at them."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which a spreadsheet takes a text for a formula."""


def list_tables(place: LakePlace) -> GoldTableList:
    """Return the gold tables of a lake, with version and age; also those that no job has made yet."""
    there = set(place.tables())
    found: list[GoldTableRow] = []
    for name, table in GOLD.items():
        row: GoldTableRow = {
            "table": name,
            "about": table.about,
            "version": None,
            "written_at": None,
            "time": table.time,
        }
        if name in there:
            opened = OpenTable(place, name)
            row["version"], row["written_at"] = opened.delta.version(), opened.written_at()
        found.append(row)
    return {"tables": found, "make": f"waypost lake run --lake {word(place.uri)}"}


def read_rows(table: OpenTable, read: GoldRows) -> bytes | GoldPage:
    """Return a document with columns of rows, or CSV. Raises `ReadRefused`."""
    gold, columns = GOLD[read.table], table.columns
    unknown = [name for name in read.equal if name not in columns]
    if unknown:
        raise ReadRefused(f"table {read.table} has no column {unknown[0]}: it has {', '.join(columns)}")
    rows = _matching(table, columns, read)
    order = _order(read, columns) or gold.order or ((gold.time or columns[0], "ascending"),)
    rows = rows.sort_by(list(order))
    if read.csv:
        return _csv(rows.slice(0, CSV_ROWS_MAX))
    limit = min(read.limit or ROWS_DEFAULT, POINTS_MAX if gold.time else ROWS_MAX)
    page = rows.slice(read.offset, limit)
    following = read.offset + page.num_rows
    return {
        "table": read.table,
        "version": table.delta.version(),
        "written_at": table.written_at(),
        "step_s": ROLLUPS.get(read.table),
        "total": rows.num_rows,
        "next": str(following) if following < rows.num_rows else None,
        "newest": table.newest(gold.time) if gold.time is not None else None,
        "columns": {name: _values(page.column(name)) for name in columns},
    }


def read_series(place: LakePlace, read: SeriesList) -> SeriesPage:
    """Return the series with values since a day. Raises `ReadRefused`."""
    table, budget = _coarsest(place), ReadBudget()
    wanted = RowFilter(
        _names(read.tenant, {"gateway": read.gateway} if read.gateway else {}), "window_start", moment_of(read.since)
    )
    found: dict[tuple[str, ...], list[Any]] = {}
    for batch in table.batches([*NAMES, "unit", "window_start"], wanted, budget):
        budget.held = 0  # only the names are kept
        groups = pa.table(batch).group_by(list(NAMES), use_threads=False)
        for row in groups.aggregate([("unit", "max"), ("window_start", "max")]).to_pylist():
            key = tuple(row[name] for name in NAMES)
            known = found.setdefault(key, [None, None])
            known[0] = row["unit_max"] or known[0]
            known[1] = max(filter(None, (known[1], row["window_start_max"])), default=None)
        if len(found) > SERIES_MAX:
            raise ReadRefused(f"there are more than {SERIES_MAX} series: choose a gateway")
    mine = [key for key in sorted(found) if _contains(key, read.text)]
    limit = min(read.limit or ROWS_DEFAULT, ROWS_MAX)
    shown = mine[read.offset : read.offset + limit]
    following = read.offset + len(shown)
    return {
        "series": [
            SeriesRow(
                tenant=key[0],
                gateway=key[1],
                device=key[2],
                address=key[3],
                metric=key[4],
                unit=found[key][0],
                last_at=milliseconds(found[key][1]),
            )
            for key in shown
        ],
        "total": len(mine),
        "next": str(following) if following < len(mine) else None,
        "written_at": table.written_at(),
    }


def _coarsest(place: LakePlace) -> OpenTable:
    """Return the rollup with the fewest rows that exists. Raises `TableMissing`."""
    there = set(place.tables())
    return OpenTable(place, next((name for name in reversed(ROLLUPS) if name in there), "rollup_1d"))


def _matching(table: OpenTable, columns: Sequence[str], read: GoldRows) -> pa.Table:
    gold, budget = GOLD[read.table], ReadBudget()
    span = gold.time is not None and (read.begin is not None or read.end is not None)
    equal = _names(read.tenant, read.equal)
    typed = {name: _typed(table.schema.field(name).type, value) for name, value in equal.items()}
    wanted = RowFilter(typed, gold.time if span else None, moment_of(read.begin), moment_of(read.end))
    batches = list(table.batches(columns, wanted, budget))
    schema = pa.schema([table.schema.field(name).with_nullable(True) for name in columns])
    rows = pa.Table.from_batches(batches, schema)
    if read.text:
        hits = [pc.match_substring(rows.column(name), read.text, ignore_case=True) for name in NAMES if name in columns]
        together = hits[0]
        for hit in hits[1:]:
            together = pc.or_kleene(together, hit)
        rows = rows.filter(together)
    return rows


def _names(tenant: str | None, equal: Mapping[str, str]) -> dict[str, str]:
    return {**equal, **({"tenant": tenant} if tenant is not None else {})}


def _typed(kind: pa.DataType, text: str) -> str | int | None:
    """Return a wanted value in the type of its column. Raises `ReadRefused`."""
    if text == "":
        return None
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind):
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ReadRefused(f"{text[:20]!r} is not a number")
        return int(text)
    if not pa.types.is_string(kind):
        raise ReadRefused("only names, numbers and truth values can be chosen by value")
    return text


def _order(read: GoldRows, columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
    name = read.sort.removeprefix("-")
    if not name:
        return ()
    if name not in columns:
        raise ReadRefused(f"table {read.table} has no column {name[:60]!r}")
    return ((name, "descending" if read.sort.startswith("-") else "ascending"),)


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _contains(names: Iterable[str], text: str) -> bool:
    return not text or any(text.casefold() in name.casefold() for name in names)


def _csv(rows: pa.Table) -> bytes:
    """Return rows in the format of RFC 4180. No text becomes a formula of a spreadsheet."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(rows.column_names)
    for batch in rows.to_batches(max_chunksize=1_000):
        columns = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
        writer.writerows(zip(*columns, strict=True))
    return out.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else value
