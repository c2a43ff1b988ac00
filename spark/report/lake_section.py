"""The section of the lake itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark import amounts
from spark.decoding.reasons import NEXT_STEPS
from spark.report import formatting, limits
from spark.report.section import Section, Subject, Tile, unknown_tile
from spark.report.table import Column, Table


class LakeSection:
    """What holds the answers, and what in it is damaged or was refused."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def lake(self) -> Section | None:
        """Files, sizes, what was set aside or rejected."""
        found = self._subject.known.storage
        tables = list(self._damages())
        if found.tables:
            columns = [
                Column("table", "name"),
                Column("rows", "count"),
                Column("files", "count"),
                Column("size", "bytes"),
                Column("a file", "bytes"),
                Column("version", "count"),
                Column("state", "state"),
            ]
            rows = [
                [
                    one.name,
                    one.rows,
                    one.files,
                    one.size,
                    one.mean,
                    one.version,
                    (1, "small files: waypost analytics maintain") if one.small else (0, ""),
                ]
                for one in found.tables
            ]
            tables.append(Table("Tables", columns, rows, len(rows), folded=True))
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
            unknown_tile(self._subject.known, "readings", "rejected values")
            or Tile("rejected values", amounts.count(rejected)),
            Tile("batches in quarantine", amounts.count(quarantined), "bad" if quarantined else "good"),
        ]
        about = (
            "Nothing is dropped: rejected values are kept in table reject with their message, refused batches in "
            "quarantine."
        )
        return Section("lake", "Lake", about, tiles, tables=tables)

    def _damages(self) -> Iterator[Table]:
        found = self._subject.known.storage
        if found.set_aside:
            columns = [
                Column("table", "name"),
                Column("file", "name"),
                Column("not taken by", "name"),
                Column("rows", "count"),
                Column("gateways"),
                Column("reason"),
                Column("found", "time"),
            ]
            rows = [
                [row["source"], row["path"], row["job"], row["rows"], _between(row), row["reason"], row["found_at"]]
                for row in found.set_aside
            ]
            yield Table("Damaged files set aside", columns, rows, found.set_aside_total)
        if found.rejects:
            columns = [Column("reason"), Column("content type", "name"), Column("number", "count"), Column("next step")]
            rows = [
                [one.reason, one.content_type, one.number, NEXT_STEPS.get(one.reason, "")]
                for one in found.rejects[: limits.ROWS_MAX]
            ]
            yield Table("Rejected values", columns, rows, len(found.rejects))
        if found.quarantined:
            rows = [list(pair) for pair in found.quarantined]
            yield Table("Quarantined batches", [Column("reason"), Column("number", "count")], rows, len(rows))


def _between(row: Mapping[str, Any]) -> str:
    first, last = row["gateway_first"], row["gateway_last"]
    if first is None:
        return "unknown"
    return str(first) if first == last else f"{first} to {last}"
