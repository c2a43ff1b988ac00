"""Outages and drains, found from the messages of the backlog lane, which waited at their gateway.

An outage is a period in which a gateway held messages that later came over the backlog lane. Its drain is the period in
which they came. Only landed messages count; gateways report those that still wait (`gateway_backlog`).
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
    """`began` and `until`: reception of the messages that waited; `drain_began` and `drained`: their landing.

    Times are seconds since 1970. `messages` is the count; `lag_max_s` is the longest delay, or None if no clock says
    so.
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
        """Return the seconds of the drain."""
        return self.drained - self.drain_began


class Outages(msgspec.Struct):
    """`longest`: outages up to `limits.OUTAGES_MAX`, the longest delay first; `by_gateway`: counts per gateway."""

    longest: list[Outage]
    total: int
    by_gateway: dict[Gateway, int]


def read(tables: ReportTables) -> Outages:
    """Return the outages of the fleet, or of one gateway."""
    found = take_worst(tables.parts("outages", _COLUMNS), limits.OUTAGES_MAX, ("lag_max_s", "descending"))
    of_gateways = group_by_gateway(tables.parts("outages", ("tenant", "gateway")), ("gateway", "count"))
    counts = {gateway: row["gateway_count"] for gateway, row in of_gateways.items()}
    return Outages([_outage(row) for row in found.rows], found.total, counts)


def count_ended(tables: ReportTables, since: float) -> int:
    """Return the number of outages that ended, with all their messages landed, at or after this second since 1970."""
    then: Filter = ("drained", ">=", datetime.fromtimestamp(since, UTC))
    return sum(part.num_rows for part in tables.parts("outages", ("drained",), then))


def _outage(row: Mapping[str, Any]) -> Outage:
    times = {name: row[name].timestamp() for name in ("began", "until", "drain_began", "drained")}
    return Outage((row["tenant"], row["gateway"]), messages=row["messages"], lag_max_s=row["lag_max_s"], **times)
