"""Age of the lake and of each gateway: the clock of the page against the newest data.

Each age of the page is counted from `now`, not from the newest row. If a hub died two months ago, its newest row is
old, and all gateways were equally fresh when it died.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark import lineage, table_errors
from spark.report.missing_tables import MADE_BY
from spark.report.snapshot import ReportSnapshot
from spark.report.tables import Gateway, ReportTables, unix_seconds

_TELEMETRY, _FRESHNESS = "telemetry", "gateway_freshness"


class Recency(msgspec.Struct):
    """Times in seconds since 1970: `now` of the page's clock, `landed_at` of the lake's newest row, `tables_at` of the
    newest row that the drawn tables know. None without rows.
    """

    now: float
    landed_at: float | None = None
    tables_at: float | None = None

    @property
    def silent_s(self) -> float | None:
        """Return the age of the newest row; None without rows."""
        return None if self.landed_at is None else max(0.0, self.now - self.landed_at)

    @property
    def ahead_s(self) -> float:
        """Return how far the newest row is in the future of the page's clock."""
        return 0.0 if self.landed_at is None else max(0.0, self.landed_at - self.now)

    @property
    def behind_s(self) -> float:
        """Return the age of the drawn tables if rows have landed after them."""
        if self.landed_at is None or self.tables_at is None or self.landed_at <= self.tables_at:
            return 0.0
        return max(0.0, self.now - self.tables_at)

    def silence(self, last_at: float) -> float:
        """Return the silence of a gateway, by the landing of its last known row.

        Rows that landed after the tables may be of any gateway. Then only the silence until the tables, or that of the
        whole lake, is certain.
        """
        if not self.behind_s:
            return max(0.0, self.now - last_at)
        return max(0.0, (self.tables_at or 0.0) - last_at, self.silent_s or 0.0)


def read(taken: ReportSnapshot, now: float) -> Recency:
    """Return the recency of the whole lake, whichever gateway the page is of."""
    last = ReportTables(taken).read(_FRESHNESS, ("last_ingested_at",))["last_ingested_at"]
    tables_at = float(unix_seconds(last).max()) if len(last) else None
    times = [at for at in (tables_at, _find_newest_landed(taken)) if at is not None]
    return Recency(now, max(times, default=None), tables_at)


def measure_silences(tables: ReportTables, recency: Recency) -> dict[Gateway, float]:
    """Return the silence of each gateway in seconds."""
    columns = ("tenant", "gateway", "device", "last_ingested_at")
    rows = tables.read(_FRESHNESS, columns)
    rows = rows.filter(pc.is_null(rows["device"])) if rows.num_rows else rows
    names = zip(rows["tenant"].to_pylist(), rows["gateway"].to_pylist(), strict=True)
    at = unix_seconds(rows["last_ingested_at"]) if rows.num_rows else []
    return {name: recency.silence(float(each)) for name, each in zip(names, at, strict=True)}


def as_of(taken: ReportSnapshot) -> dict[str, float]:
    """Return for each derived table the landing of the newest data that it knows, if its commits say so."""
    found = {}
    for name in sorted(MADE_BY.keys() & taken.tables.keys()):
        with table_errors.translate_errors(name):
            made_of = lineage.read_lineage(taken.tables[name])
        state = made_of.telemetry if made_of is not None else None
        if state is not None and state.committed_at is not None:
            found[name] = state.committed_at.timestamp()
    return found


def _find_newest_landed(taken: ReportSnapshot) -> float | None:
    """Return the landing of the newest row of `telemetry` by the statistics in its log; None if they do not say."""
    table = taken.tables.get(_TELEMETRY)
    if table is None:
        return None
    with table_errors.translate_errors(_TELEMETRY):
        actions = pa.table(table.get_add_actions(flatten=True))
    if "max.ingested_at" not in actions.column_names:
        return None
    newest: Any = pc.max(actions["max.ingested_at"])
    return float(unix_seconds(pa.chunked_array([[newest.as_py()]]))[0]) if newest.is_valid else None
