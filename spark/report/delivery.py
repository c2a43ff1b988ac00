"""Time from the gateway into the lake, compared with the target."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import msgspec

from spark.report import limits
from spark.report.tables import Gateway, ReportTables, group, group_by_gateway

HOUR_S, DAY_S = 3600, 86_400
HOURS_DRAWN = 24 * 14
"""Number of hourly windows up to which hours are drawn. Beyond it days are drawn, and the hours, 24 times as many, are
not read.
"""
_GATEWAY = ("tenant", "gateway")
_SUMS = ("messages", "timed", "within")
_TOPS = ("p50_s", "p95_s", "p99_s", "max_s")


class DeliveryWindow(msgspec.Struct):
    """An hour or a day.

    `p50_s` is of one gateway only. `p95_s`, `p99_s` and `max_s` are those of the worst gateway, because percentiles
    cannot be added.
    """

    start: float
    messages: int
    timed: int
    within: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None

    @property
    def share(self) -> float | None:
        """Share of the timed messages within the target."""
        return self.within / self.timed if self.timed else None


class DeliveryTimes(msgspec.Struct):
    """Delivery times: `within` of the `timed` messages kept the target.

    `windows` are of `width_s` seconds each, in order; `by_gateway` has sums.
    """

    messages: int
    timed: int
    within: int
    width_s: int
    windows: list[DeliveryWindow]
    days: list[DeliveryWindow]
    by_gateway: dict[Gateway, dict[str, Any]]

    @property
    def share(self) -> float | None:
        """Share of all timed messages within the target."""
        return self.within / self.timed if self.timed else None


def read(tables: ReportTables) -> DeliveryTimes:
    """Return the delivery times of the fleet, or of one gateway."""
    days = _windows(tables, DAY_S)
    hours = _windows(tables, HOUR_S) if len(days) <= HOURS_DRAWN // 24 + 1 else []
    width = HOUR_S if 0 < len(hours) <= HOURS_DRAWN else DAY_S
    sums = group_by_gateway(
        tables.parts("delivery_slo", (*_GATEWAY, *_SUMS, "p95_s", "max_s"), ("width_s", "=", DAY_S)),
        *((name, "sum") for name in _SUMS),
        ("p95_s", "max"),
        ("max_s", "max"),
    )
    messages, timed, within = (sum(row[f"{name}_sum"] for row in sums.values()) for name in _SUMS)
    return DeliveryTimes(
        messages,
        timed,
        within,
        width_s=width,
        windows=(days if width == DAY_S else hours)[-limits.WINDOWS_DRAWN :],
        days=days[-limits.WINDOWS_DRAWN :],
        by_gateway=sums,
    )


def _windows(tables: ReportTables, width_s: int) -> list[DeliveryWindow]:
    parts = tables.parts("delivery_slo", ("window_start", *_SUMS, *_TOPS), ("width_s", "=", width_s))
    aggregates = (*((name, "sum") for name in _SUMS), *((name, "max") for name in _TOPS))
    alone = tables.only is not None
    return [
        DeliveryWindow(
            row["window_start"].timestamp(),
            row["messages_sum"],
            row["timed_sum"],
            row["within_sum"],
            row["p50_s_max"] if alone else None,
            row["p95_s_max"],
            row["p99_s_max"],
            row["max_s_max"],
        )
        for row in sorted(group(parts, ("window_start",), *aggregates), key=itemgetter("window_start"))
    ]
