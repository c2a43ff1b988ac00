"""Sections of gateways and devices: state, changes and unusual values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from spark import amounts
from spark.report import charts, drawings, formatting, limits, names
from spark.report.charts import Chart
from spark.report.notices import as_of
from spark.report.section import GATEWAY, UNKNOWN, ReportSection, SectionContext, Tile
from spark.report.table import ReportColumn, ReportTable
from spark.report.tracks import Track


class FleetSections:
    """Each method makes one section, or returns a note that there is nothing to show."""

    def __init__(self, context: SectionContext) -> None:
        self._context = context

    def fleet(self) -> ReportSection | None:
        """Return all gateways, the worst first."""
        known = self._context.known
        if known.gateway is not None or not known.members:
            return None
        columns = [
            GATEWAY,
            ReportColumn("state", "state"),
            ReportColumn("messages", "count"),
            ReportColumn(f"last {limits.SPARK_HOURS} h", "spark"),
            ReportColumn("last landed", "time"),
            ReportColumn("lag p95", "seconds"),
            ReportColumn("in time", "share"),
            ReportColumn("unexplained", "count", alarm=True),
            ReportColumn("given up", "count"),
            ReportColumn("waiting", "count"),
            ReportColumn("outages", "count"),
            ReportColumn("devices", "count"),
            ReportColumn("anomalies", "count"),
        ]
        strips = known.strips.by_gateway
        sparks = {name: drawings.levels(strip.messages[-limits.SPARK_HOURS :]) for name, strip in strips.items()}
        rank = {"ok": 0, "look": 1, "wrong": 2}
        rows = [
            [
                self._context.gateway(one.gateway),
                (rank[one.state], ", ".join(one.why) or "ok"),
                one.rows,
                sparks.get(one.gateway),
                one.last_at,
                one.lag_p95_s,
                one.within_share,
                one.unexplained,
                one.given_up,
                one.waiting,
                one.outages,
                one.devices,
                one.anomalies,
            ]
            for one in known.members[: limits.GATEWAYS_MAX]
        ]
        about = "Every gateway, those that need a look first. A page of one: `waypost report --gateway NAME`."
        return ReportSection(
            "fleet", "Fleet", about, tables=[ReportTable("Gateways", columns, rows, len(known.members))]
        )

    def changes(self) -> ReportSection | None:
        """Return the changes of the last day."""
        found = self._context.known.changes
        if found is None:
            return None
        count = amounts.count
        counts = (
            ("gateways that are new", found.new_gateways, "fleet"),
            ("gateways that fell silent", found.silent_gateways, "fleet"),
            ("outages that ended", found.outages, "outages"),
            ("anomalies", found.anomalies, "anomalies"),
            ("unhealthy devices that restarted", found.restarts, "devices"),
        )
        tiles = [Tile(name, count(number), section=section) for name, number, section in counts]
        tiles += self._of_weeks()
        since = formatting.moment(datetime.fromtimestamp(found.since, UTC))
        about = f"Since {since}, the last 24 hours."
        if self._context.known.weeks is not None:
            until = formatting.moment(datetime.fromtimestamp(self._context.known.weeks.until, UTC))[:10]
            about += f" The week: seven whole days before {until} against the seven before them."
        return ReportSection("changes", "What changed", about, tiles)

    def _of_weeks(self) -> list[Tile]:
        """Return last week compared with the week before it."""
        found = self._context.known.weeks
        if found is None:
            return []
        last, before = found.last, found.before
        return [
            _change("messages", last.messages, before.messages),
            _change_of_share("in the lake within 60 s", last.within, before.within),
            _change_of_share("landed, of what gateways stated", last.landed, before.landed),
            _change("anomalies", last.anomalies, before.anomalies, more_is_worse=True),
        ]

    def hours(self) -> ReportSection | None:
        """Return a strip for each gateway with one cell per hour."""
        known, strips = self._context.known, self._context.known.strips
        gateways = [one.gateway for one in known.members if one.gateway in strips.by_gateway][: limits.STRIPS_MAX]
        if not gateways:
            return None
        lost = strips.unexplained(known.accounts.hours)
        rows = [
            [self._context.gateway(gateway), strips.by_gateway[gateway].cells(lost.get(gateway, ()))]
            for gateway in gateways
        ]
        columns = [GATEWAY, ReportColumn("hours", "heat", start=strips.start)]
        first, last = (
            formatting.moment(datetime.fromtimestamp(second, UTC))[:16]
            for second in (strips.start, strips.start + 3_600 * strips.hours)
        )
        about = (
            f"A cell is an hour of reception, from {first} to {last} UTC, with a line at each midnight. The darker, "
            "the more messages against the gateway\u2019s busiest hour. Orange and low: less than 99 % in time. Red "
            "and framed: some unexplained. A grey line: no messages."
        )
        table = ReportTable("Hours of gateways", columns, rows, len(known.members))
        return ReportSection("hours", "Hours", about, tables=[table])

    def devices(self) -> ReportSection | None:
        """Return the health of devices."""
        found = self._context.known.health
        if not found.devices:
            return None
        count = amounts.count
        names = {
            "silent": "silent",
            "battery": "battery ends within 30 d",
            "reboots": "restart often",
            "clock": "clock wrong",
        }
        tiles = [Tile("devices", count(found.devices))]
        tiles += [
            Tile(names[sign], count(number), "look" if number else "good") for sign, number in found.signs.items()
        ]
        columns = [
            GATEWAY,
            ReportColumn("device", "name"),
            ReportColumn("state", "state"),
            ReportColumn("last data", "time"),
            ReportColumn("silent", "seconds"),
            ReportColumn("sends every", "seconds"),
            ReportColumn("battery", "number"),
            ReportColumn("a day", "number"),
            ReportColumn("left, days", "number"),
            ReportColumn("starts", "count"),
            ReportColumn("clock ahead", "seconds"),
            ReportColumn("rssi", "number"),
        ]
        rows = [self._device(row) for row in found.worst]
        total = found.devices if self._context.known.gateway is not None else found.need_a_look
        tables = [
            ReportTable(
                "Devices that need a look" if self._context.known.gateway is None else "Devices", columns, rows, total
            )
        ]
        about = (
            "The last 30 days of each device. Silent: no data for more than 5 of its own intervals, counted from now."
        )
        return ReportSection("devices", "Device health", about, tiles, tables=tables if rows else [])

    def _device(self, row: dict[str, Any]) -> list[Any]:
        return [
            self._context.gateway((row["tenant"], row["gateway"])),
            row["device"],
            (1 if row["signs"] else 0, ", ".join(row["signs"]) or "ok"),
            row["last_at"],
            row["silent_s"],
            row["interval_s"],
            row["battery"],
            row["battery_per_day"],
            row["battery_days"],
            row["boots"],
            row["clock_ahead_s"],
            row["rssi"],
        ]

    def anomalies(self) -> ReportSection | None:
        """Return the unusual values."""
        found = self._context.known.anomalies
        if not found.count:
            return None
        tiles = [Tile("anomalies", amounts.count(found.count))]
        tiles += [Tile(rule, amounts.count(number)) for rule, number in found.rules]
        columns = [
            GATEWAY,
            ReportColumn("device", "name"),
            ReportColumn("metric", "name"),
            ReportColumn("at", "time"),
            ReportColumn("value", "number"),
            ReportColumn("expected", "number"),
            ReportColumn("off by", "number"),
            ReportColumn("rule"),
            ReportColumn("score", "number"),
        ]
        rows = [
            [
                self._context.gateway(one.gateway),
                one.device,
                one.metric,
                one.at,
                one.value,
                one.expected,
                one.off_by,
                one.rule or "",
                one.score,
            ]
            for one in found.newest
        ]
        about = (
            "Values that are unusual for their series, with the rule that found them and the expected value; marked "
            "in the charts below."
        )
        return ReportSection(
            "anomalies", "Anomalies", about, tiles, tables=[ReportTable("Unusual values", columns, rows, found.count)]
        )

    def metrics(self) -> ReportSection | None:
        """Return the charts of the metrics of devices."""
        known = self._context.known
        if not known.tracks or known.span is None:
            return None
        window = "minute" if known.tracks[0].width == 60 else "hour"
        raw = ", and the readings themselves" if any(track.readings for track in known.tracks) else ""
        about = f"Each metric of each device: the mean of each {window}, the range it moved in{raw}."
        at = as_of(known.tracks_at)
        about += " The number is the last value" + (f", as of {at}." if at is not None else ".")
        if any(track.anomalies for track in known.tracks):
            about += " A ring is an anomaly, with the band to the value that was expected."
        notes = []
        left = known.metrics_total - len(known.tracks)
        if known.metrics_total == 0:
            notes.append(
                "In so large a fleet only metrics with anomalies are drawn; a gateway\u2019s page has all its metrics."
            )
        elif left > 0:
            notes.append(f"{amounts.count(left)} more metrics are in the tables rollup_1m and rollup_1h.")
        if known.tracks_since is not None:
            since = formatting.moment(datetime.fromtimestamp(known.tracks_since, UTC))
            notes.append(f"Drawn since {since}: what was before is in the tables rollup_1m and rollup_1h.")
        drawn = [self._track(track, known.span) for track in known.tracks if track.windows]
        return ReportSection("metrics", "Metrics", about, charts=drawn, notes=notes)

    def _track(self, track: Track, span: tuple[float, float]) -> Chart:
        chart = charts.track(track, span, self._context.bands_of(track.gateway))
        if self._context.known.gateway is None and self._context.known.flows_total > 1:
            chart.place = f"{names.short_name(track.gateway)}: {chart.place}"
        return chart


def _change(name: str, last: int, before: int, more_is_worse: bool = False) -> Tile:
    """Return a number of last week with its direction."""
    share = (last - before) / before if before else None
    suffix = f" {_sign(last - before)}{formatting.percent(abs(share))}" if share is not None and last != before else ""
    mark: Literal["", "look"] = "look" if more_is_worse and last > before else ""
    return Tile(f"{name} last week; {amounts.count(before)} the week before", f"{amounts.count(last)}{suffix}", mark)


def _change_of_share(name: str, last: float | None, before: float | None) -> Tile:
    """Return a share of last week with its change in percentage points."""
    if last is None or before is None:
        return Tile(f"{name}, last week", UNKNOWN)
    points = round(100 * (last - before), 1)
    suffix = f" {_sign(points)}{abs(points):g} points" if points else ""
    mark: Literal["", "look"] = "look" if points < 0 else ""
    value = f"{formatting.percent(last)}{suffix}"
    return Tile(f"{name}, last week; {formatting.percent(before)} the week before", value, mark)


def _sign(change: float) -> str:
    return "\u25b2 +" if change > 0 else "\u25bc \u2212"
