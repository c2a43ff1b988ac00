"""Tables that no job has made yet: their figures are unknown, not zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import deltalake

from spark import lineage
from spark.report.snapshot import ReportSnapshot

_BALANCE: Final = "completeness"
_CREATED: Final = "CREATE"
"""Prefix of the operation of a commit that created a table, or created it again."""
MADE_BY: Final[Mapping[str, str]] = {
    _BALANCE: "gaps",
    "gateway_freshness": "messages",
    "device_health": "health",
    "delivery_slo": "messages",
    "throughput": "messages",
    "outages": "messages",
    "anomalies": "anomalies",
    "readings": "readings",
    "rollup_1m": "rollups",
    "rollup_1h": "hours",
}
"""Tables of the page, and the job that makes each."""
KNOWN_FROM: Final[Mapping[str, str]] = {
    _BALANCE: "duplicates and gaps",
    "gateway_freshness": "the last data of each gateway",
    "device_health": "the health of devices",
    "delivery_slo": "delivery times",
    "throughput": "messages over time",
    "outages": "outages",
    "anomalies": "anomalies",
    "readings": "readings",
    "rollup_1m": "values by minute",
    "rollup_1h": "values by hour",
}
"""Figures of the page, by table."""


def find_never_made(taken: ReportSnapshot) -> dict[str, str]:
    """Return the tables that no pass has written, with the job that makes each.

    Tables that cannot be read are left out. A job creates its tables before it computes their rows; a first pass writes
    `completeness` empty.
    """
    made = {name for name, table in taken.tables.items() if (table.count() if name == _BALANCE else _is_written(table))}
    return {name: job for name, job in MADE_BY.items() if name not in made and name not in taken.unreadable}


def _is_written(table: deltalake.DeltaTable) -> bool:
    newest = lineage.last_change(table)
    return newest is None or not newest.operation.startswith(_CREATED)
