"""Landed rows of a hub for tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return every row of a table; empty while the table does not exist."""
    found = lake / table
    return list(DeltaTable(found).to_pyarrow_table().to_pylist()) if found.exists() else []


def manifests_asked_for(data: Path) -> bool:
    """Return True when a hub requests a gateway's manifests: accepted messages are stated at its next start."""
    connection = sqlite3.connect(f"{(data / 'store.sqlite').resolve().as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT 1 FROM state WHERE kind = 'manifest'").fetchone() is not None
    finally:
        connection.close()
