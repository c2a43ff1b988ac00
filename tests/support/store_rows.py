"""Rows of a gateway's store on disk, also while the gateway runs."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from edge.broker.store.sqlite import FILE_NAME


def query(data: Path, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
    """Return the rows that a query finds in the store of this data directory."""
    uri = f"{(data / FILE_NAME).resolve().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(sql, parameters).fetchall()
