"""Take damaged files out of landed tables, so that the rest can be read again. No JVM.

Four steps: the loss is recorded in table `set_aside`; existing files are moved to `_damaged`, next to the tables;
delta-rs removes missing files from the table's log; a file without rows is put in the place of each. A process that is
killed between two steps has lost nothing. The next run does the rest: a file that was moved is missing, and its row
exists.

The files without rows are for streams with a checkpoint. They read the files of each commit, also files that a later
commit removed, and would fail as before. Vacuum deletes these files after a week, when such a stream has to restart
from scratch.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from typing import Any, Final

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError

from cloud.place.data_file import write_data_file
from cloud.place.place import LOG, LakePlace
from spark import schemas, table_errors
from spark.data_files import list_files
from spark.maintenance import FOLLOWED_KEPT_HOURS
from spark.verification import DamagedFile

DAMAGED: Final = "_damaged"
"""Folder of the lake that keeps damaged files, a folder per table."""
JOB: Final = "verify"
"""Reader of the files, as table `set_aside` names it."""
_SET_ASIDE: Final = schemas.SET_ASIDE
_MISSING: Final = "missing"


def drop(lake: LakePlace, table: str, damaged: Iterable[DamagedFile]) -> list[DamagedFile]:
    """Take damaged files out of a landed table; return those that were, with the reasons from table `set_aside`.

    Other missing files go, too: delta-rs removes all of them. Raises `TableUnreadable` if `set_aside` cannot be read,
    and one of `table_errors.FAILURES`; then the next run does the rest.
    """
    place = lake.at(table)
    opened = place.delta()
    files = {file.path: file for file in list_files(opened)}
    found = {each.file.path: each for each in damaged if each.file.path in files}  # the others were replaced since
    for path in opened.repair(dry_run=True)["files_removed"]:
        found.setdefault(path, DamagedFile(files[path], _MISSING))
    reasons = record_losses(lake, table, list(found.values()))
    for path in found:
        move_away(lake, table, path)
    removed = remove_missing(place)
    unnamed = [DamagedFile(files[path], _MISSING) for path in removed if path in files and path not in found]
    reasons |= record_losses(lake, table, unnamed)
    add_empty_files(lake, table)
    dropped = (each for each in chain(found.values(), unnamed) if each.file.path in removed)
    return [replace(each, reason=reasons[each.file.path]) for each in dropped]


def record_losses(lake: LakePlace, table: str, damaged: Sequence[DamagedFile]) -> dict[str, str]:
    """Add a row to table `set_aside` for each file that has none yet; it is on the medium on return.

    Returns the reasons of the files of this table, by path.
    """
    if not damaged:
        return {}
    place = lake.at(_SET_ASIDE.name)
    with table_errors.translate_errors(_SET_ASIDE.name):
        noted = _open_or_create(place)
        reasons = {row["path"]: row["reason"] for row in _read_losses(noted) if row["source"] == table}
        fresh = [each for each in damaged if each.file.path not in reasons]
        if fresh:
            _append(place, noted, [_row(table, each) for each in fresh])
    return reasons | {each.file.path: each.reason for each in fresh}


def move_away(lake: LakePlace, table: str, path: str) -> None:
    """Move a file of a table, if it exists, to the same path below `_damaged`. A file there keeps its name."""
    place, (folder, _, name) = lake.at(table), path.rpartition("/")
    content = place.read(path)
    if content is None:
        return
    kept = lake.at("/".join(filter(None, (DAMAGED, table, folder))))
    kept.make()
    names = chain([name], (f"{name}.{number}" for number in count(2)))
    next(name for name in names if kept.put_new(name, content) or kept.read(name) == content)
    kept.sync("", ())
    place.delete(path)
    place.sync(folder, ())


def remove_missing(place: LakePlace) -> list[str]:
    """Remove missing files from a table's log, on the medium on return; return their paths."""
    table = place.delta()
    before = table.version()
    removed: list[str] = table.repair(dry_run=False)["files_removed"]
    _sync_log(place, table, before)
    return removed


def add_empty_files(lake: LakePlace, table: str) -> None:
    """Put a file without rows in the place of each dropped one that streams may still read."""
    place = lake.at(table)
    since = datetime.now(UTC) - timedelta(hours=FOLLOWED_KEPT_HOURS)
    try:
        rows = list(_read_losses(lake.at(_SET_ASIDE.name).delta()))
    except TableNotFoundError:
        return
    paths = {row["path"] for row in rows if row["source"] == table and row["found_at"] > since}
    opened = place.delta()
    for path in sorted(paths - {file.path for file in list_files(opened)}):
        if place.size(path) is None:
            folder, _, name = path.rpartition("/")
            parent = lake.at(f"{table}/{folder}".rstrip("/"))
            parent.make()
            parent.put_new(name, _empty_file(opened))
            parent.sync("", ())


def _empty_file(table: deltalake.DeltaTable) -> bytes:
    """Return a data file of a table that has no rows."""
    columns = pa.schema(table.schema().to_arrow())
    partitions = set(table.metadata().partition_columns)
    content = io.BytesIO()
    pq.write_table(pa.schema([field for field in columns if field.name not in partitions]).empty_table(), content)
    return content.getvalue()


def forget_restored(lake: LakePlace) -> None:
    """Delete the rows of table `set_aside` for files that are in their tables again. Raises `TableUnreadable`."""
    try:
        with table_errors.translate_errors(_SET_ASIDE.name):
            noted = lake.at(_SET_ASIDE.name).delta()
            rows = list(_read_losses(noted))
    except TableNotFoundError:
        return
    for source in sorted({row["source"] for row in rows}):
        present = _list_paths(lake.at(source))
        back = [row["path"] for row in rows if row["source"] == source and row["path"] in present]
        if back:
            paths = ", ".join(map(_quoted, back))
            with table_errors.translate_errors(_SET_ASIDE.name):
                noted.delete(f"job = {_quoted(JOB)} AND source = {_quoted(source)} AND path IN ({paths})")
                noted.update_incremental()


def _list_paths(place: LakePlace) -> set[str]:
    """Return the paths of a table's files; none if it cannot be read, which its readers report."""
    with suppress(*table_errors.FAILURES):
        return {file.path for file in list_files(place.delta())}
    return set()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _row(table: str, damaged: DamagedFile) -> dict[str, Any]:
    file = damaged.file
    row = {"source": table, "path": file.path, "job": JOB, "rows": file.rows, "reason": damaged.reason}
    for column, ends in (("gateway", file.gateways), ("sequence", file.sequences)):
        row[f"{column}_first"], row[f"{column}_last"] = ends or (None, None)
    return row | {"found_at": datetime.now(UTC)}


def _read_losses(noted: deltalake.DeltaTable) -> Iterator[dict[str, Any]]:
    columns = ["source", "path", "job", "reason", "found_at"]
    # Arrow's threads may still run when this process ends, and abort it.
    rows = noted.to_pyarrow_dataset().to_table(columns=columns, use_threads=False).to_pylist()
    return (row for row in rows if row["job"] == JOB)


def _open_or_create(place: LakePlace) -> deltalake.DeltaTable:
    try:
        return place.delta()
    except TableNotFoundError:
        place.make()
        form = deltalake.Schema.from_json(_SET_ASIDE.columns.json())
        properties = {"delta.dataSkippingStatsColumns": ",".join(_SET_ASIDE.keys)}
        made = deltalake.DeltaTable.create(
            place.uri, form, storage_options=place.storage_options, configuration=properties
        )
        _sync_log(place, made, -1)
        place.sync("", (LOG,))
        return made


def _append(place: LakePlace, table: deltalake.DeltaTable, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows in one commit, on the medium on return."""
    before = table.version()
    data = pa.Table.from_pylist(list(rows), schema=pa.schema(table.schema().to_arrow()))
    action = write_data_file(place, [data], {})
    table.create_write_transaction([action], mode="append", schema=table.schema(), partition_by=[])
    _sync_log(place, table, before)


def _sync_log(place: LakePlace, table: deltalake.DeltaTable, before: int) -> None:
    """Sync the commits after version `before` to the medium: delta-rs syncs nothing."""
    table.update_incremental()
    for version in range(before + 1, table.version() + 1):
        place.sync(LOG, (f"{version:020}.json", f"{version:020}.checkpoint.parquet", "_last_checkpoint"))
