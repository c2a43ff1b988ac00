"""A Delta log entry by entry: what each commit of a table added, and what it says of itself.

Read as files, not through delta-rs: that gives a table as it is at a version, and not what one commit did.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cloud.place.place import LOG, Place, Somewhere, place_of


class LogDamaged(RuntimeError):
    """An entry of a log cannot be read; the message names the file and what to do."""


class File(msgspec.Struct, frozen=True):
    """A data file as the log has it: `path` below the table's folder, `size` in bytes, `rows` where the log says so."""

    path: str
    size: int
    rows: int | None = None

    def missing(self, table: Place) -> str | None:
        """What is wrong with it at a glance, below its table's place: not there, of another size. None: nothing."""
        size = table.size(self.path)
        if size is None:
            return "missing"
        return None if size == self.size else f"truncated ({size:,} of {self.size:,} bytes)"

    def damaged(self, table: Place) -> str | None:
        """The same after reading all of it, with the checksums of its pages where it has some."""
        wrong = self.missing(table)
        if wrong is not None:
            return wrong
        rows = 0
        try:
            with pq.ParquetFile(table.source(self.path), page_checksum_verification=True) as opened:
                for group in range(opened.num_row_groups):
                    rows += opened.read_row_group(group).num_rows
        except (OSError, pa.ArrowException):
            return "damaged"
        return None if self.rows in (None, rows) else f"not what was written ({rows:,} of {self.rows:,} rows)"


class Entry(msgspec.Struct, frozen=True):
    """One commit: `info` as it describes itself, the files it added rows by, whether it took rows away, and which
    version of which application it is."""

    info: dict[str, Any]
    added: tuple[File, ...]
    takes_away: bool
    transactions: dict[str, int] = {}

    @property
    def changes_rows(self) -> bool:
        """It is no maintenance, nor does it only say something."""
        return self.takes_away or any(file.rows != 0 for file in self.added)


class _Add(msgspec.Struct):
    path: str
    size: int
    dataChange: bool = True  # noqa: N815 - Delta's name for it
    stats: str | None = None


class _Remove(msgspec.Struct):
    dataChange: bool = True  # noqa: N815 - Delta's name for it


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815 - Delta's name for it
    version: int


class _Action(msgspec.Struct):
    commitInfo: dict[str, Any] | None = None  # noqa: N815 - Delta's name for it
    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Transaction | None = None


_decoder = msgspec.json.Decoder(_Action)


def entry(table: Somewhere, version: int) -> Entry | None:
    """The commit that made `version`; None when the log does not have it (any more). Raises `LogDamaged`."""
    place, name = place_of(table), f"{LOG}/{version:020}.json"
    content = place.read(name)
    if content is None:
        return None
    path, lines = f"{place.uri}/{name}", content.splitlines()
    try:
        actions = [_decoder.decode(line) for line in lines]
    except msgspec.DecodeError as error:
        raise LogDamaged(_damaged(path, str(error))) from None
    if not actions:
        raise LogDamaged(_damaged(path, "empty"))
    info = next((action.commitInfo for action in actions if action.commitInfo is not None), {})
    added = tuple(_file(action.add) for action in actions if action.add is not None and action.add.dataChange)
    takes_away = any(action.remove is not None and action.remove.dataChange for action in actions)
    transactions = {action.txn.appId: action.txn.version for action in actions if action.txn is not None}
    return Entry(info, added, takes_away, transactions)


def files(table: deltalake.DeltaTable) -> list[File]:
    """The files of a table as it was opened, the oldest first."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = ("modification_time", "path", "size_bytes", "num_records")
    rows = sorted(zip(*(actions[name].to_pylist() for name in columns), strict=True))
    return [File(unquote(path), int(size), rows) for _, path, size, rows in rows]


def _file(add: _Add) -> File:
    return File(unquote(add.path), add.size, _rows(add.stats))


def _rows(statistics: str | None) -> int | None:
    try:
        found = json.loads(statistics or "{}").get("numRecords")
    except ValueError:
        return None
    return int(found) if found is not None else None


def _damaged(path: str, why: str) -> str:
    return (
        f"log entry {path} is damaged ({why}). Put back a copy of it; if it is the last one of a landed table, start "
        "the hub, which takes a torn one away; a derived table is made anew by `waypost analytics rebuild`"
    )
