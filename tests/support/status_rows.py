"""Rows of `gateway_status`, and the gateways of those in a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable

from cloud.lake.rows import record_rows

NOW_US: Final = 1_795_250_665_237_123


def state(number: int) -> pa.Table:
    """Return the row of one gateway."""
    row = {"tenant": "default", "gateway": f"gw{number}", "reported_at": NOW_US, "state": "running"}
    return record_rows("gateway_status", [row], NOW_US)


def gateways(lake: Path) -> list[str]:
    """Return the gateways in the table, sorted."""
    table = DeltaTable(lake / "gateway_status")
    files = [pa.parquet.read_table(file, partitioning=None) for file in table.file_uris()]
    return sorted(name for file in files for name in file.column("gateway").to_pylist())
