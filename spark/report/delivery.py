"""How long messages take from their gateway into the lake, against the target."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark.report import limits
from spark.report.tables import Gateway, Tables, by_gateway, total

HOUR_S, DAY_S = 3600, 86_400
HOURS_DRAWN = 24 * 14
"""Windows of an hour up to which hours are drawn; beyond it days, and the hours, 24 times as many, are not read."""
_COLUMNS = ("tenant", "gateway", "window_start", "messages", "timed", "within", "p50_s", "p95_s", "p99_s", "max_s")


class Window(msgspec.Struct):
    """An hour or a day. `p50_s` is of one gateway only; `p95_s`, `p99_s` and `max_s` are those of the worst gateway:
    percentiles do
    not add up."""

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


class Delivery(msgspec.Struct):
    """`within` of the `timed` messages kept the target; `windows` are of `width_s` each, in order; `by_gateway` has
    sums."""

    messages: int
    timed: int
    within: int
    width_s: int
    windows: list[Window]
    days: list[Window]
    by_gateway: dict[Gateway, dict[str, Any]]

    @property
    def share(self) -> float | None:
        """Share of all timed messages within the target."""
        return self.within / self.timed if self.timed else None


def read(tables: Tables) -> Delivery:
    """Of the fleet, or of one gateway."""
    days = tables.read("delivery_slo", _COLUMNS, ("width_s", "=", DAY_S))
    hours = days.slice(0, 0)
    if not days.num_rows or len(pc.unique(days["window_start"])) <= HOURS_DRAWN // 24 + 1:
        hours = tables.read("delivery_slo", _COLUMNS, ("width_s", "=", HOUR_S))
    width = HOUR_S if hours.num_rows and len(pc.unique(hours["window_start"])) <= HOURS_DRAWN else DAY_S
    sums = by_gateway(
        days, ("messages", "sum"), ("timed", "sum"), ("within", "sum"), ("p95_s", "max"), ("max_s", "max")
    )
    of_days = _windows(days, alone=tables.only is not None)
    return Delivery(
        messages=total(days, "messages"),
        timed=total(days, "timed"),
        within=total(days, "within"),
        width_s=width,
        windows=of_days if width == DAY_S else _windows(hours, alone=tables.only is not None),
        days=of_days,
        by_gateway=sums,
    )


def _windows(table: pa.Table, alone: bool) -> list[Window]:
    if not table.num_rows:
        return []
    sums = [(name, "sum") for name in ("messages", "timed", "within")]
    tops = [(name, "max") for name in ("p50_s", "p95_s", "p99_s", "max_s")]
    grouped = table.group_by("window_start").aggregate([*sums, *tops]).sort_by("window_start").to_pylist()
    return [
        Window(
            row["window_start"].timestamp(),
            row["messages_sum"],
            row["timed_sum"],
            row["within_sum"],
            row["p50_s_max"] if alone else None,
            row["p95_s_max"],
            row["p99_s_max"],
            row["max_s_max"],
        )
        for row in grouped[-limits.WINDOWS_DRAWN :]
    ]
