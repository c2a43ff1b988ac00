"""Outages and drains, as the messages themselves tell of them: those of the backlog lane waited at their gateway.

An outage is a stretch in which a gateway held messages that later came over the backlog lane; its drain is the part of
it in which they came. Of what has landed only: of messages that still wait there tell the gateways (`gateway_backlog`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from spark.report import limits
from spark.report.tables import Filter, Gateway, ReportTables, group_by_gateway, take_worst

_COLUMNS = ("tenant", "gateway", "began", "until", "drain_began", "drained", "messages", "lag_max_s")


class Outage(msgspec.Struct):
    """`began`, `until`: when the messages were received that waited, `drain_began`, `drained`: when they landed;
    seconds since 1970. `messages` is how many, `lag_max_s` how long the slowest was under way; None: no clock says.
    """

    gateway: Gateway
    began: float
    until: float
    drain_began: float
    drained: float
    messages: int
    lag_max_s: float | None

    @property
    def drain_s(self) -> float:
        """How long the drain took."""
        return self.drained - self.drain_began


class Outages(msgspec.Struct):
    """`longest`: as many as are held (`limits.OUTAGES_MAX`), the longest delay first; `by_gateway`: how many there
    were."""

    longest: list[Outage]
    total: int
    by_gateway: dict[Gateway, int]


def read(tables: ReportTables) -> Outages:
    """Of the fleet, or of one gateway."""
    found = take_worst(tables.parts("outages", _COLUMNS), limits.OUTAGES_MAX, ("lag_max_s", "descending"))
    of_gateways = group_by_gateway(tables.parts("outages", ("tenant", "gateway")), ("gateway", "count"))
    counts = {gateway: row["gateway_count"] for gateway, row in of_gateways.items()}
    return Outages([_outage(row) for row in found.rows], found.total, counts)


def count_ended(tables: ReportTables, since: float) -> int:
    """How many were over, with all that had waited landed, at that second since 1970 or later."""
    then: Filter = ("drained", ">=", datetime.fromtimestamp(since, UTC))
    return sum(part.num_rows for part in tables.parts("outages", ("drained",), then))


def _outage(row: Mapping[str, Any]) -> Outage:
    times = {name: row[name].timestamp() for name in ("began", "until", "drain_began", "drained")}
    return Outage((row["tenant"], row["gateway"]), messages=row["messages"], lag_max_s=row["lag_max_s"], **times)
