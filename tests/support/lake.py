"""What a hub has landed, as a test looks at it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Every row of a table; none while there is no such table yet."""
    found = lake / table
    return list(DeltaTable(found).to_pyarrow_table().to_pylist()) if found.exists() else []


def manifests_asked_for(data: Path) -> bool:
    """A hub takes a gateway's manifests: what it has accepted is stated at its next start."""
    connection = sqlite3.connect(f"{(data / 'store.sqlite').resolve().as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT 1 FROM state WHERE kind = 'manifest'").fetchone() is not None
    finally:
        connection.close()
