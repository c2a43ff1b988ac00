"""Connections to the store's file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from edge.broker.store import schema
from edge.broker.store.limits import KIB, STATEMENTS_KEPT, StoreLimits


def connect_writer(path: Path, limits: StoreLimits) -> sqlite3.Connection:
    """Open a connection for writing. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_KEPT,
        timeout=limits.busy_timeout_s,
    )
    try:
        schema.configure(connection, limits)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect_reader(path: Path, limits: StoreLimits) -> sqlite3.Connection:
    """Open a read-only connection. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=limits.busy_timeout_s,
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{limits.reader_cache_bytes // KIB}").fetchall()
    except sqlite3.Error:
        connection.close()
        raise
    return connection
