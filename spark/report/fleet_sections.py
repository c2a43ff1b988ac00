"""Sections of gateways and devices: who needs a look, what changed, what is unusual."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from spark import amounts
from spark.report import charts, formatting, limits, names
from spark.report.charts import Chart
from spark.report.notices import as_of
from spark.report.section import GATEWAY, Section, Subject, Tile
from spark.report.table import Column, Table
from spark.report.tracks import Track


class FleetSections:
    """Each method makes one, or says that there is nothing to say."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def fleet(self) -> Section | None:
        """Every gateway, the worst first."""
        known = self._subject.known
        if known.gateway is not None or not known.members:
            return None
        columns = [
            GATEWAY,
            Column("state", "state"),
            Column("messages", "count"),
            Column("last landed", "time"),
            Column("lag p95", "seconds"),
            Column("in time", "share"),
            Column("unexplained", "count", alarm=True),
            Column("given up", "count"),
            Column("waiting", "count"),
            Column("outages", "count"),
            Column("devices", "count"),
            Column("anomalies", "count"),
        ]
        rank = {"ok": 0, "look": 1, "wrong": 2}
        rows = [
            [
                self._subject.gateway(one.gateway),
                (rank[one.state], ", ".join(one.why) or "ok"),
                one.rows,
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
        about = "Every gateway, those that need a look first. A page of one: `waypost analytics report --gateway NAME`."
        return Section("fleet", "Fleet", about, tables=[Table("Gateways", columns, rows, len(known.members))])

    def changes(self) -> Section | None:
        """Of the last day."""
        found = self._subject.known.changes
        if found is None:
            return None
        count = amounts.count
        told = (
            ("gateways that are new", found.new_gateways, "fleet"),
            ("gateways that fell silent", found.silent_gateways, "fleet"),
            ("outages that ended", found.outages, "outages"),
            ("anomalies", found.anomalies, "anomalies"),
            ("ill devices that started again", found.restarts, "devices"),
        )
        tiles = [Tile(name, count(number), section=section) for name, number, section in told]
        tiles += self._change_of_messages()
        since = formatting.moment(datetime.fromtimestamp(found.since, UTC))
        return Section("changes", "What changed", f"Since {since}, the last 24 hours.", tiles)

    def _change_of_messages(self) -> list[Tile]:
        """The last whole day against the one before it."""
        days = self._subject.known.delivery.days
        if len(days) < 3:
            return []
        before, last = days[-3], days[-2]
        share = (last.messages - before.messages) / before.messages if before.messages else 0.0
        sign = "+" if share > 0 else ""
        return [Tile("messages, last whole day against the day before", f"{sign}{formatting.percent(share)}")]

    def devices(self) -> Section | None:
        """Health of devices."""
        found = self._subject.known.health
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
            Column("device", "name"),
            Column("state", "state"),
            Column("last data", "time"),
            Column("silent", "seconds"),
            Column("sends every", "seconds"),
            Column("battery", "number"),
            Column("a day", "number"),
            Column("left, days", "number"),
            Column("starts", "count"),
            Column("clock ahead", "seconds"),
            Column("rssi", "number"),
        ]
        rows = [self._device(row) for row in found.worst]
        total = found.devices if self._subject.known.gateway is not None else found.need_a_look
        tables = [
            Table(
                "Devices that need a look" if self._subject.known.gateway is None else "Devices", columns, rows, total
            )
        ]
        about = (
            "Of the last 30 days of each device. Silent: nothing came of it for more than 5 of its own "
            "intervals, counted from now."
        )
        return Section("devices", "Device health", about, tiles, tables=tables if rows else [])

    def _device(self, row: dict[str, Any]) -> list[Any]:
        return [
            self._subject.gateway((row["tenant"], row["gateway"])),
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

    def anomalies(self) -> Section | None:
        """Unusual values."""
        found = self._subject.known.anomalies
        if not found.count:
            return None
        tiles = [Tile("anomalies", amounts.count(found.count))]
        tiles += [Tile(rule, amounts.count(number)) for rule, number in found.rules]
        columns = [
            GATEWAY,
            Column("device", "name"),
            Column("metric", "name"),
            Column("at", "time"),
            Column("value", "number"),
            Column("expected", "number"),
            Column("off by", "number"),
            Column("rule"),
            Column("score", "number"),
        ]
        rows = [
            [
                self._subject.gateway(one.gateway),
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
            "Values that are unusual for their series, with the rule that said so and what it expected; marked "
            "in the charts below."
        )
        return Section("anomalies", "Anomalies", about, tiles, tables=[Table("Anomalies", columns, rows, found.count)])

    def metrics(self) -> Section | None:
        """Charts of the metrics of devices."""
        known = self._subject.known
        if not known.tracks or known.span is None:
            return None
        window = "minute" if known.tracks[0].width == 60 else "hour"
        raw = ", and the readings themselves" if any(track.readings for track in known.tracks) else ""
        about = f"Each metric of each device: the mean of each {window}, the range it moved in{raw}."
        at = as_of(known.tracks_at)
        about += " The number is the last value" + (f", as of {at}." if at is not None else ".")
        notes = []
        left = known.metrics_total - len(known.tracks)
        if known.metrics_total == 0:
            notes.append(
                "Of so large a fleet only metrics with anomalies are drawn; a gateway\u2019s page has all of its own."
            )
        elif left > 0:
            notes.append(f"{amounts.count(left)} more metrics are in the tables rollup_1m and rollup_1h.")
        if known.tracks_since is not None:
            since = formatting.moment(datetime.fromtimestamp(known.tracks_since, UTC))
            notes.append(f"Drawn since {since}: what was before is in the tables rollup_1m and rollup_1h.")
        drawn = [self._track(track, known.span) for track in known.tracks if track.windows]
        return Section("metrics", "Metrics", about, charts=drawn, notes=notes)

    def _track(self, track: Track, span: tuple[float, float]) -> Chart:
        chart = charts.track(track, span, self._subject.bands_of(track.gateway))
        if self._subject.known.gateway is None and self._subject.known.flows_total > 1:
            chart.place = f"{names.name_of(track.gateway)}: {chart.place}"
        return chart
