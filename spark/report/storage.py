"""The lake itself: files and sizes of its tables, files that were set aside, rejects, and quarantined messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark import table_errors
from spark.report import limits
from spark.report.snapshot import ReportSnapshot
from spark.report.tables import Gateway, ReportTables, group, seconds, take_worst


class TableSize(msgspec.Struct):
    """Files, bytes and rows of one table at this version."""

    name: str
    version: int
    files: int
    size: int
    rows: int

    @property
    def mean(self) -> float:
        """Return the mean bytes per file."""
        return self.size / self.files if self.files else 0.0

    @property
    def small(self) -> bool:
        """Return whether the table has many small files."""
        return self.files >= limits.SMALL_FILES and self.mean < limits.SMALL_FILE_BYTES


class RejectCount(NamedTuple):
    """Number of values that could not be read for one reason, of messages of one content type."""

    reason: str
    content_type: str
    """Content type; empty if the messages had none."""
    number: int


class Storage(msgspec.Struct):
    """`rejects` and `quarantined`: the most frequent reason first; `set_aside`: the newest rows of that table, of
    `set_aside_total`.
    """

    tables: list[TableSize]
    set_aside: list[dict[str, Any]]
    set_aside_total: int
    rejects: list[RejectCount]
    quarantined: list[tuple[str, int]]


def read(taken: ReportSnapshot, tables: ReportTables) -> Storage:
    """Return the files of the whole lake, and the rest of the fleet or of one gateway."""
    columns = ("source", "path", "job", "rows", "gateway_first", "gateway_last", "reason", "found_at")
    parts = (_filter_by_gateway(part, tables.only) for part in tables.parts("set_aside", columns))
    aside = take_worst(parts, limits.ROWS_MAX, ("found_at", "descending"))
    return Storage(
        tables=[]
        if tables.only is not None
        else [_measure(name, table) for name, table in sorted(taken.tables.items())],
        set_aside=[row | {"found_at": seconds(row["found_at"])} for row in aside.rows],
        set_aside_total=aside.total,
        rejects=_rejects(tables),
        quarantined=reasons(tables, "quarantine"),
    )


def _filter_by_gateway(aside: pa.Table, only: Gateway | None) -> pa.Table:
    """Select files that can hold rows of the gateway, by the first and last gateway of each."""
    if only is None:
        return aside
    begins, ends = (pc.less_equal(aside["gateway_first"], only[1]), pc.greater_equal(aside["gateway_last"], only[1]))
    return aside.filter(pc.fill_null(pc.and_(begins, ends), True))


def _measure(name: str, table: deltalake.DeltaTable) -> TableSize:
    with table_errors.translate_errors(name):
        actions = pa.table(table.get_add_actions(flatten=True))
    size = pc.sum(actions["size_bytes"]).as_py() if actions.num_rows else 0
    return TableSize(name, table.version(), actions.num_rows, int(size or 0), int(table.count()))


def _rejects(tables: ReportTables) -> list[RejectCount]:
    names = ("reason", "content_type")
    counts = group(tables.parts("reject", names), names, ("reason", "count"))
    found = (RejectCount(row["reason"], row["content_type"] or "", row["reason_count"]) for row in counts)
    return sorted(found, key=lambda one: -one.number)


def reasons(tables: ReportTables, name: str) -> list[tuple[str, int]]:
    """Return rows of a table by their reason."""
    counts = group(tables.parts(name, ("reason",)), ("reason",), ("reason", "count"))
    return sorted(((row["reason"], row["reason_count"]) for row in counts), key=lambda pair: -pair[1])
