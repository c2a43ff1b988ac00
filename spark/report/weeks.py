"""Last week compared with the week before it: seven whole days each, up to the last midnight before now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from spark.report import limits
from spark.report.delivery import DAY_S, DeliveryTimes
from spark.report.tables import ReportTables, unix_seconds
from spark.report.tracks import Anomalies

_WEEK_S: Final = 7 * DAY_S


class Week(msgspec.Struct):
    """`messages` received, the share that was in the lake in time, the landed share of stated messages, and
    `anomalies`.

    A share is None without messages.
    """

    messages: int
    within: float | None
    landed: float | None
    anomalies: int


class Weeks(msgspec.Struct):
    """`until`: the midnight that ends the last week, in seconds since 1970."""

    until: float
    last: Week
    before: Week


def read(tables: ReportTables, now: float, delivery: DeliveryTimes, anomalies: Anomalies) -> Weeks | None:
    """Return both weeks; None if one of them has no messages, or the lake is younger than two weeks."""
    until = now // DAY_S * DAY_S
    starts = until - _WEEK_S, until - 2 * _WEEK_S
    if not any(day.start <= starts[1] for day in delivery.days):
        return None
    landed = _landed(tables, starts[1], until)
    last, before = (_week(start, delivery, anomalies, landed[at]) for at, start in enumerate(starts))
    return Weeks(until, last, before) if last.messages and before.messages else None


def _week(start: float, delivery: DeliveryTimes, anomalies: Anomalies, landed: float | None) -> Week:
    days = [day for day in delivery.days if start <= day.start < start + _WEEK_S]
    timed = sum(day.timed for day in days)
    return Week(
        sum(day.messages for day in days),
        sum(day.within for day in days) / timed if timed else None,
        landed,
        sum(count for hour, count in anomalies.hours if start <= hour < start + _WEEK_S),
    )


def _landed(tables: ReportTables, since: float, until: float) -> list[float | None]:
    """Return the landed share of stated messages, of the last week and the week before it."""
    sums = np.zeros((2, 2))
    if tables.rows_in_all("completeness_hourly") <= limits.WEEK_ROWS_MAX:
        bounds = [datetime.fromtimestamp(second, UTC) for second in (since, until)]
        where = ("hour", ">=", bounds[0]), ("hour", "<", bounds[1])
        for part in tables.parts("completeness_hourly", ("hour", "accepted", "landed"), *where):
            place = 1 - ((unix_seconds(part["hour"]) - since) // _WEEK_S).astype(np.int64)
            for row, name in enumerate(("accepted", "landed")):
                np.add.at(sums[row], place, part[name].to_numpy().astype(np.float64))
    return [float(landed / accepted) if accepted else None for accepted, landed in sums.T]
