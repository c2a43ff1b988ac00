"""Sections about messages: delivery time, completeness and flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spark import amounts
from spark.report import charts, formatting, limits
from spark.report.charts import Band, Chart
from spark.report.flows import MessageFlow
from spark.report.section import GATEWAY, ReportSection, SectionContext, Tile
from spark.report.table import ReportColumn, ReportTable


class MessageSections:
    """Each method makes one section, or returns a note that there is nothing to show."""

    def __init__(self, context: SectionContext) -> None:
        self._context = context

    def delivery(self) -> ReportSection | None:
        """Return the delivery times compared with the target."""
        found = self._context.known.delivery
        if not found.timed or found.share is None:
            return None
        slowest = max((each.max_s or 0.0 for each in found.windows), default=None)
        late = found.share < limits.WITHIN_SHARE
        tiles = [
            Tile("in the lake within 60 s", formatting.percent(found.share), "look" if late else ""),
            Tile("messages timed", amounts.count(found.timed)),
            Tile("slowest message", formatting.duration(slowest)),
        ]
        about = "Time from reception at the gateway to the commit in the lake, by the hour of reception."
        return ReportSection("delivery", "Delivery time", about, tiles, charts.delivery(found, self._context.bands))

    def completeness(self) -> ReportSection | None:
        """Return the balance: accepted = landed + discarded + waiting + unexplained."""
        found = self._context.known.accounts
        if not found.known:
            return None  # a notice at the top says so
        balance = found.balance
        count = amounts.count
        tiles = [
            Tile("accepted by gateways", count(balance.accepted)),
            Tile("= landed", count(balance.landed)),
            *(Tile(f"+ given up: {reason}", count(number)) for reason, number in balance.given_up.items()),
            Tile("+ still at the gateway", count(balance.waiting)),
            Tile("+ unexplained", count(balance.unexplained), "bad" if balance.unexplained else "good"),
            Tile("duplicates", count(balance.duplicates), "bad" if balance.duplicates else "good"),
        ]
        about = (
            "Every message has a number that is dense per gateway and address, and gateways state what they "
            "accepted, so the "
            "lake itself shows what is missing. A gap is explained when the gateway\u2019s loss ledger names it."
        )
        tables = [self._addresses(), *self._ranges()]
        notes = []
        if balance.unstated:
            notes.append(
                f"{count(balance.unstated)} of the accepted messages are not in a gateway\u2019s statement yet."
            )
        return ReportSection("completeness", "Completeness", about, tiles, tables=tables, notes=notes)

    def _addresses(self) -> ReportTable:
        found = self._context.known.accounts
        heads = ("rows", "accepted", "missing", "given up", "waiting")
        names = ("rows", "accepted", "missing", "explained", "waiting")
        columns = [
            GATEWAY,
            ReportColumn("address", "name"),
            ReportColumn("sequences"),
            *(ReportColumn(head, "count") for head in heads),
            ReportColumn("unexplained", "count", alarm=True),
            ReportColumn("duplicates", "count", alarm=True),
        ]
        rows = [
            [
                self._context.gateway((row["tenant"], row["gateway"])),
                row["address"],
                _numbers(row),
                *(row[name] for name in names),
                row["unexplained"],
                row["duplicates"],
            ]
            for row in found.addresses
        ]
        return ReportTable("Completeness by address", columns, rows, found.addresses_total)

    def _ranges(self) -> Iterator[ReportTable]:
        found = self._context.known.accounts
        if found.ranges:
            columns = [
                GATEWAY,
                ReportColumn("address", "name"),
                ReportColumn("sequences"),
                ReportColumn("missing", "count"),
                ReportColumn("state", "state"),
            ]
            rows = [
                [
                    self._context.gateway((row["tenant"], row["gateway"])),
                    row["address"],
                    _numbers(row),
                    row["missing"],
                    (0, f"given up: {row['reason']}") if row["explained"] else (2, "unexplained"),
                ]
                for row in found.ranges
            ]
            yield ReportTable("Missing ranges", columns, rows, found.ranges_total)
        if found.hours:
            heads = ("accepted", "landed", "waiting")
            columns = [
                GATEWAY,
                ReportColumn("address", "name"),
                ReportColumn("hour", "time"),
                *(ReportColumn(head, "count") for head in heads),
                ReportColumn("unexplained", "count", alarm=True),
            ]
            hours = [
                [
                    self._context.gateway((row["tenant"], row["gateway"])),
                    row["address"],
                    row["hour"],
                    *(row[head] for head in heads),
                    row["unexplained"],
                ]
                for row in found.hours
            ]
            yield ReportTable("Hours with something unexplained", columns, hours, found.hours_total)

    def _flows(self, make: Callable[[MessageFlow, int, Sequence[Band]], Chart]) -> list[Chart]:
        known = self._context.known
        return [make(flow, known.flows_total, self._context.bands_of(flow.gateway)) for flow in known.flows]

    def flow(self) -> ReportSection | None:
        """Return received and landed messages."""
        known = self._context.known
        if not known.flows:
            return None
        about = (
            "Messages a second: received by the gateway from its devices, and landed in the lake. Where the line "
            "runs on and "
            "the filling stops, the gateway was cut off and kept receiving."
        )
        notes = []
        if known.flows_total > len(known.flows):
            notes.append(
                f"Drawn: the whole fleet, and of {amounts.count(known.flows_total)} gateways the "
                f"{len(known.flows) - 1} "
                "that held most."
            )
        return ReportSection("throughput", "Throughput", about, charts=self._flows(charts.throughput), notes=notes)

    def backlog(self) -> ReportSection | None:
        """Return the backlogs of gateways."""
        if not self._context.known.flows:
            return None
        about = "Messages a gateway had accepted that were not in the lake yet."
        return ReportSection("backlog", "Backlog and drain", about, charts=self._flows(charts.backlog))

    def freshness(self) -> ReportSection | None:
        """Return delivery times over time."""
        if not self._context.known.flows:
            return None
        about = "Time from the gateway to the lake: for each moment, the slowest of the messages that landed then."
        columns = [
            GATEWAY,
            ReportColumn("lag p50", "seconds"),
            ReportColumn("lag p95", "seconds"),
            ReportColumn("worst", "seconds"),
            ReportColumn("late", "share"),
            ReportColumn("clock suspect", "count"),
        ]
        slowest = sorted(self._context.known.members, key=lambda one: -(one.lag_p95_s or 0.0))
        rows = [
            [
                self._context.gateway(one.gateway),
                one.lag_p50_s,
                one.lag_p95_s,
                one.lag_max_s,
                one.late_share,
                one.suspect,
            ]
            for one in slowest[: limits.ROWS_MAX]
        ]
        table = ReportTable("Freshness by gateway", columns, rows, len(slowest))
        return ReportSection(
            "freshness", "Freshness", about, charts=self._flows(charts.lag), tables=[table] if rows else []
        )

    def outages(self) -> ReportSection | None:
        """Return the outages and how their messages arrived later."""
        known = self._context.known
        found, total = known.outages, known.outages_total
        if not found:
            return None
        columns = [
            GATEWAY,
            ReportColumn("cut off from", "time"),
            ReportColumn("until", "time"),
            ReportColumn("drain took", "seconds"),
            ReportColumn("messages", "count"),
            ReportColumn("slowest", "seconds"),
        ]
        rows = [
            [self._context.gateway(one.gateway), one.began, one.until, one.drain_s, one.messages, one.lag_max_s]
            for one in found[: limits.ROWS_MAX]
        ]
        about = (
            "Stretches in which messages waited at their gateway and came over the backlog lane, those with the "
            "longest delay first; with less than a minute between them they are one. What still waits is in the column "
            "waiting of the fleet."
        )
        held = amounts.count(len(found))
        notes = [f"Marked in the charts: those with the {held} longest delays."] if total > len(found) else []
        table = ReportTable("Outages", columns, rows, total)
        return ReportSection("outages", "Outages and drains", about, tables=[table], notes=notes)


def _numbers(row: Mapping[str, Any]) -> str:
    return f"{amounts.count(row['first_sequence'])}\u2013{amounts.count(row['last_sequence'])}"
