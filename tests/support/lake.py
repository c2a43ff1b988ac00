"""Landed rows of a hub for tests."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.support.store_rows import query


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return every row of a table; empty while the table does not exist."""
    log = lake / table / "_delta_log"
    return list(_rows_of(lake / table, tuple(sorted(os.listdir(log))))) if log.exists() else []


@functools.lru_cache(maxsize=4)
def _rows_of(table: Path, _log: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read a table once for each entry of its log: tests ask many times a second whether something has landed."""
    return list(DeltaTable(table).to_pyarrow_table().to_pylist())


def read_columns(lake: Path, table: str, *names: str) -> list[tuple[Any, ...]]:
    """Return these columns of every row of a table, sorted."""
    found: list[tuple[Any, ...]] = []
    for file in DeltaTable(lake / table).file_uris():
        part = pq.ParquetFile(file).read(columns=list(names))
        found += zip(*(part.column(name).to_pylist() for name in names), strict=True)
    return sorted(found)


def manifests_asked_for(data: Path) -> bool:
    """Return True when a hub requests a gateway's manifests: accepted messages are stated at its next start."""
    return bool(query(data, "SELECT 1 FROM state WHERE kind = 'manifest' LIMIT 1"))
