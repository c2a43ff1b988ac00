"""State of the lake for pages: size, age and maintenance of every table, and a sample of the quarantine."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from cloud.place.place import LakePlace
from cloud.reader.documents import LakeTableList, LakeTableRow, QuarantineList
from cloud.reader.limits import HISTORY_COMMITS, SAMPLE_BYTES, SAMPLE_ROWS, SMALL_FILE_BYTES
from cloud.reader.requests import QuarantineSample
from cloud.reader.tables import OpenTable, ReadBudget, ReadRefused, RowFilter, milliseconds

_DAYS: Final = ("partition.ingest_date", "partition.event_date")
_SAMPLED: Final = ("tenant", "gateway", "link", "reason", "received_at", "ingested_at", "content")


def read_tables(place: LakePlace) -> LakeTableList:
    """Return one row per table. A table that cannot be read has a field `error`."""
    return {"tables": [_table(place, name) for name in place.tables()], "place": place.uri}


def _table(place: LakePlace, name: str) -> LakeTableRow:
    try:
        table = OpenTable(place, name)
        files = table.files()
        history = table.delta.history(HISTORY_COMMITS)
    except ReadRefused as error:
        return {"table": name, "error": str(error)}
    days = [str(day) for file in files for key in _DAYS if (day := file.get(key)) is not None]
    return {
        "table": name,
        "version": table.delta.version(),
        "rows": sum(file.get("num_records") or 0 for file in files),
        "files": len(files),
        "bytes": sum(file["size_bytes"] for file in files),
        "small_files": sum(file["size_bytes"] < SMALL_FILE_BYTES for file in files),
        "written_at": int(history[0]["timestamp"]) if history else None,
        "oldest_day": min(days, default=None),
        "newest_day": max(days, default=None),
        "optimized_at": _last(history, "OPTIMIZE"),
        "vacuumed_at": _last(history, "VACUUM END"),
    }


def _last(history: list[dict[str, Any]], operation: str) -> int | None:
    return next((int(each["timestamp"]) for each in history if each.get("operation") == operation), None)


def read_quarantine(table: OpenTable, read: QuarantineSample) -> QuarantineList:
    """Return the newest deliveries in quarantine, and the number of all by reason. Raises `ReadRefused`."""
    wanted = RowFilter({"tenant": read.tenant} if read.tenant is not None else {})
    budget, newest = ReadBudget(), None
    reasons: dict[str, int] = {}
    for batch in table.batches(_SAMPLED, wanted, budget):
        budget.held = 0  # only the newest rows are kept
        for row in pa.table(batch).group_by("reason", use_threads=False).aggregate([("reason", "count")]).to_pylist():
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + row["reason_count"]
        found = pa.table(batch) if newest is None else pa.concat_tables([newest, pa.table(batch)])
        newest = found.sort_by([("ingested_at", "descending")]).slice(0, SAMPLE_ROWS).combine_chunks()
    rows = newest.to_pylist() if newest is not None else []
    return {
        "rows": [
            {
                "tenant": row["tenant"],
                "gateway": row["gateway"],
                "link": row["link"],
                "reason": row["reason"],
                "received_at": milliseconds(row["received_at"]),
                "bytes": len(row["content"]),
                "head": row["content"][:SAMPLE_BYTES].hex(),
            }
            for row in rows
        ],
        "reasons": [
            {"reason": reason, "count": count} for reason, count in sorted(reasons.items(), key=lambda one: -one[1])
        ],
        "total": sum(reasons.values()),
    }
