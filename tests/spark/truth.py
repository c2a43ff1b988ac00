"""Comparison of derived tables with DuckDB's results from the landed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import duckdb
from deltalake import DeltaTable


class Truth(NamedTuple):
    """Two queries with equal results: one on landed tables, one on a derived table."""

    landed: str
    derived: str


def windows(table: str, unit: str) -> Truth:
    """Return the check of a rollup; view `truth` has every value: gateway, metric, event_time, value."""
    return Truth(
        f"SELECT gateway, metric, date_trunc('{unit}', event_time), count(*), min(value), max(value), sum(value) "
        "FROM truth GROUP BY ALL",
        f"SELECT gateway, metric, window_start, count, min, max, sum FROM {table}",
    )


ROLLUPS = {
    name: windows(name, unit) for name, unit in (("rollup_1m", "minute"), ("rollup_1h", "hour"), ("rollup_1d", "day"))
}


def differences(lake: Path, landed: Iterable[str], views: str, truths: Mapping[str, Truth]) -> dict[str, int]:
    """Count missing, duplicate and wrong rows of derived tables; return only tables with differences.

    `views`: SQL that derives the queries' views from the `landed` tables.
    """
    found = {}
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        for name in (*landed, *truths):
            connection.register(name, DeltaTable(lake / name).to_pyarrow_dataset())
        connection.sql(views)
        for name, (truth, ours) in truths.items():
            wrong = f"(({truth}) EXCEPT ALL ({ours})) UNION ALL (({ours}) EXCEPT ALL ({truth}))"
            ((count,),) = connection.sql(f"SELECT count(*) FROM ({wrong})").fetchall()
            if count:
                found[name] = count
    return found
