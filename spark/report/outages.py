"""Outages and drains, as the messages themselves tell of them: those of the backlog lane waited at their gateway.

An outage is a stretch in which a gateway held messages that later came over the backlog lane; its drain is the part of
it in which they came. Of what has landed only: of messages that still wait there tell the gateways (`gateway_backlog`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from spark.report.tables import Gateway, Tables

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


def read(tables: Tables) -> list[Outage]:
    """All of them, the longest delay first."""
    found = (_outage(row) for row in tables.rows("outages", _COLUMNS))
    return sorted(found, key=lambda outage: -(outage.lag_max_s or 0.0))


def _outage(row: Mapping[str, Any]) -> Outage:
    times = {name: row[name].timestamp() for name in ("began", "until", "drain_began", "drained")}
    return Outage((row["tenant"], row["gateway"]), messages=row["messages"], lag_max_s=row["lag_max_s"], **times)
