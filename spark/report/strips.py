"""Messages and lateness by hour, of the gateways that most need a look."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from spark.report import limits
from spark.report.recency import Recency
from spark.report.tables import Gateway, ReportTables, gateway_codes, unix_seconds

_HOUR_S: Final = 3_600
_COLUMNS: Final = ("tenant", "gateway", "window_start", "messages", "timed", "within")


class Strip(msgspec.Struct):
    """Hours of one gateway from `Strips.start` on.

    `messages`: received in each hour; `late`: numbers of the hours with too few messages in time.
    """

    messages: list[int]
    late: list[int]

    def cells(self, unexplained: Collection[int]) -> str:
        """Return one letter per hour: `.` no messages, `1` to `4` amount against the maximum, `l` late, `u`
        unexplained.
        """
        most, late = max(self.messages, default=0), set(self.late)
        return "".join(
            "u"
            if at in unexplained
            else "."
            if not count
            else "l"
            if at in late
            else str(1 + min(3, 4 * count // (most + 1)))
            for at, count in enumerate(self.messages)
        )


class Strips(msgspec.Struct):
    """`start`: the first hour in seconds since 1970; `hours`: their number; `by_gateway`: one strip per gateway."""

    start: float = 0.0
    hours: int = 0
    by_gateway: dict[Gateway, Strip] = {}

    def unexplained(self, rows: Sequence[Mapping[str, Any]]) -> dict[Gateway, set[int]]:
        """Return the numbers of the hours of each gateway that have rows of statements."""
        found: dict[Gateway, set[int]] = {}
        for row in rows:
            if row["hour"] is not None:
                at = int((row["hour"] - self.start) // _HOUR_S)
                found.setdefault((row["tenant"], row["gateway"]), set()).add(at)
        return found


def read(tables: ReportTables, chosen: Sequence[Gateway], recency: Recency) -> Strips:
    """Return the last hours of these gateways, up to now, or up to the newest data if that is older than a strip.

    A strip begins with their data, or a day before its end.
    """
    if not chosen or recency.landed_at is None:
        return Strips()
    span = limits.STRIP_HOURS * _HOUR_S
    last = recency.now if 0 <= recency.now - recency.landed_at < span else recency.landed_at
    end = (last // _HOUR_S + 1) * _HOUR_S
    bounds = [datetime.fromtimestamp(second, UTC) for second in (end - span, end)]
    rows = tables.read(
        "delivery_slo",
        _COLUMNS,
        ("width_s", "=", _HOUR_S),
        ("window_start", ">=", bounds[0]),
        ("window_start", "<", bounds[1]),
        ("gateway", "in", sorted({name for _, name in chosen})),
    )
    if not rows.num_rows:
        return Strips()
    at = unix_seconds(rows["window_start"])
    start = min(float(at.min() // _HOUR_S * _HOUR_S), end - limits.STRIP_HOURS_MIN * _HOUR_S)
    hours = round((end - start) / _HOUR_S)
    codes, gateways = gateway_codes(rows)
    messages, timed, within = np.zeros((3, len(gateways), hours))
    place = codes, ((at - start) // _HOUR_S).astype(np.int64)
    for sums, name in ((messages, "messages"), (timed, "timed"), (within, "within")):
        np.add.at(sums, place, rows[name].to_numpy().astype(np.float64))
    late = within < timed * limits.WITHIN_SHARE
    wanted = set(chosen)
    found = {
        gateway: Strip(messages[number].astype(np.int64).tolist(), np.flatnonzero(late[number]).tolist())
        for number, gateway in enumerate(gateways)
        if gateway in wanted
    }
    return Strips(start, hours, found)
