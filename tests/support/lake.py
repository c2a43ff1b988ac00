"""What a hub has landed, as a test looks at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Every row of a table; none while there is no such table yet."""
    found = lake / table
    return list(DeltaTable(found).to_pyarrow_table().to_pylist()) if found.exists() else []
