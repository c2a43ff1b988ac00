"""Data files of a table: what the log states about each, and whether the file is intact. No JVM.

Logs are read through delta-rs only.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from cloud.place.faults import ObjectStoreError
from cloud.place.place import LakePlace

_COLUMNS: Final = {
    *("path", "size_bytes", "num_records", "modification_time"),
    *(f"{end}.{column}" for end in ("min", "max") for column in ("gateway", "sequence")),
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """Data file that a table's log names.

    `path`: relative to the table's folder. `size`: in bytes. `rows`, and the first and last of `gateways` and
    `sequences`: statistics of the log; None if it has none.
    """

    path: str
    size: int
    rows: int | None = None
    gateways: tuple[str, str] | None = None
    sequences: tuple[int, int] | None = None


def list_files(table: deltalake.DeltaTable) -> list[DataFile]:
    """Return the files of a table as it was opened, oldest first."""
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.select([name for name in actions.column_names if name in _COLUMNS]).to_pylist()
    return [_data_file(row) for row in sorted(rows, key=lambda row: (row["modification_time"], row["path"]))]


def _data_file(row: dict[str, Any]) -> DataFile:
    gateways, sequences = (_extremes(row, column) for column in ("gateway", "sequence"))
    return DataFile(unquote(row["path"]), int(row["size_bytes"]), row["num_records"], gateways, sequences)


def _extremes(row: dict[str, Any], column: str) -> tuple[Any, Any] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (first, last)


def find_damage(file: DataFile, table: LakePlace) -> str | None:
    """Read a file completely, with its page checksums; return what is wrong with it, or None.

    Raises `OSError` or `MemoryError` if the file cannot be read now, which says nothing about the file.
    """
    size = table.size(file.path)
    if size is None:
        return "missing"
    if size != file.size:
        return f"truncated ({size:,} of {file.size:,} bytes)"
    try:
        rows = _count_rows(file, table)
    except FileNotFoundError:
        return "missing"
    except MemoryError:  # which Arrow's own is, too
        raise
    except (OSError, pa.ArrowException) as error:
        if _is_refusal(error):
            raise
        return "damaged"
    return None if file.rows in (None, rows) else f"not what was written ({rows:,} of {file.rows:,} rows)"


def _count_rows(file: DataFile, table: LakePlace) -> int:
    with pq.ParquetFile(table.source(file.path), page_checksum_verification=True) as opened:
        return sum(opened.read_row_group(group).num_rows for group in range(opened.num_row_groups))


def _is_refusal(error: Exception) -> bool:
    """Return whether the store or the system refused to read.

    Arrow's errors about content have no number; EIO is the medium's answer that the content is lost.
    """
    number = error.errno if isinstance(error, OSError) else None
    return isinstance(error, ObjectStoreError) or number not in (None, errno.EIO)
