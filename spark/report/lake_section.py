"""The section about the lake itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark import amounts
from spark.decoding.reasons import NEXT_STEPS
from spark.report import formatting, limits
from spark.report.section import ReportSection, SectionContext, Tile, unknown_tile
from spark.report.table import ReportColumn, ReportTable


class LakeSection:
    """Section of the tables and of damaged or rejected data."""

    def __init__(self, context: SectionContext) -> None:
        self._context = context

    def lake(self) -> ReportSection | None:
        """Return files, sizes, and what was set aside or rejected."""
        found = self._context.known.storage
        tables = list(self._damages())
        if found.tables:
            columns = [
                ReportColumn("table", "name"),
                ReportColumn("rows", "count"),
                ReportColumn("files", "count"),
                ReportColumn("size", "bytes"),
                ReportColumn("a file", "bytes"),
                ReportColumn("version", "count"),
                ReportColumn("state", "state"),
            ]
            rows = [
                [
                    one.name,
                    one.rows,
                    one.files,
                    one.size,
                    one.mean,
                    one.version,
                    (1, "small files: waypost lake maintain") if one.small else (0, ""),
                ]
                for one in found.tables
            ]
            tables.append(ReportTable("Tables", columns, rows, len(rows), folded=True))
        if not tables:
            return None
        size = sum(one.size for one in found.tables)
        files = sum(one.files for one in found.tables)
        quarantined = sum(number for _, number in found.quarantined)
        rejected = sum(one.number for one in found.rejects)
        of_all = [Tile("size of all tables", formatting.size(size)), Tile("files", amounts.count(files))]
        tiles = [
            *(of_all if found.tables else []),
            Tile("damaged files set aside", amounts.count(found.set_aside_total), "bad" if found.set_aside else "good"),
            unknown_tile(self._context.known, "readings", "rejected values")
            or Tile("rejected values", amounts.count(rejected)),
            Tile("batches in quarantine", amounts.count(quarantined), "bad" if quarantined else "good"),
        ]
        about = (
            "Nothing is dropped: rejected values are kept in table reject with their message, refused batches in "
            "quarantine."
        )
        return ReportSection("lake", "Lake", about, tiles, tables=tables)

    def _damages(self) -> Iterator[ReportTable]:
        found = self._context.known.storage
        if found.set_aside:
            columns = [
                ReportColumn("table", "name"),
                ReportColumn("file", "name"),
                ReportColumn("not taken by", "name"),
                ReportColumn("rows", "count"),
                ReportColumn("gateways"),
                ReportColumn("reason"),
                ReportColumn("found", "time"),
            ]
            rows = [
                [row["source"], row["path"], row["job"], row["rows"], _between(row), row["reason"], row["found_at"]]
                for row in found.set_aside
            ]
            yield ReportTable("Damaged files set aside", columns, rows, found.set_aside_total)
        if found.rejects:
            columns = [
                ReportColumn("reason"),
                ReportColumn("content type", "name"),
                ReportColumn("number", "count"),
                ReportColumn("next step"),
            ]
            rows = [
                [one.reason, one.content_type, one.number, NEXT_STEPS.get(one.reason, "")]
                for one in found.rejects[: limits.ROWS_MAX]
            ]
            yield ReportTable("Rejected values", columns, rows, len(found.rejects))
        if found.quarantined:
            rows = [list(pair) for pair in found.quarantined]
            yield ReportTable(
                "Quarantined batches", [ReportColumn("reason"), ReportColumn("number", "count")], rows, len(rows)
            )


def _between(row: Mapping[str, Any]) -> str:
    first, last = row["gateway_first"], row["gateway_last"]
    if first is None:
        return "unknown"
    return str(first) if first == last else f"{first} to {last}"
