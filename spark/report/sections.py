"""The sections of the page below its head: what each says, draws and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from spark.report import charts, formatting, limits
from spark.report.charts import Band, Chart
from spark.report.flows import Flow
from spark.report.notices import as_of
from spark.report.queries import LakeFigures
from spark.report.table import Column, Table
from spark.report.tables import Gateway
from spark.report.tracks import Track

Links = Mapping[Gateway, str]
"""Addresses of the pages of gateways."""
Tile = tuple[str, str, str]
"""Name, value, `bad` or `good` or nothing."""
_GATEWAY = Column("gateway", "gateway")


class Section(msgspec.Struct):
    """In this order: `about`, `tiles`, `charts`, `tables`, `notes`."""

    id: str
    title: str
    about: str = ""
    tiles: list[Tile] = []
    charts: list[Chart] = []
    tables: list[Table] = []
    notes: list[str] = []


class Sections:
    """Makes them. `bands`: what is marked in all charts over time."""

    def __init__(self, known: LakeFigures, bands: Sequence[Band], links: Links | None = None) -> None:
        self._known = known
        self._bands = bands
        self._links = links or {}

    def all(self) -> list[Section]:
        """Those that have something to say, in order."""
        makers = (
            self.fleet,
            self.delivery,
            self.completeness,
            self.flow,
            self.backlog,
            self.freshness,
            self.outages,
            self.devices,
            self.anomalies,
            self.metrics,
            self.lake,
        )
        return [section for section in (make() for make in makers) if section is not None]

    def _gateway(self, gateway: Gateway) -> tuple[str, str]:
        return charts.name_of(gateway), self._links.get(gateway, "")

    def fleet(self) -> Section | None:
        """Every gateway, the worst first."""
        known = self._known
        if known.gateway is not None or not known.members:
            return None
        columns = [
            _GATEWAY,
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
                self._gateway(one.gateway),
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

    def delivery(self) -> Section | None:
        """Times into the lake against the target."""
        found = self._known.delivery
        if not found.timed or found.share is None:
            return None
        tiles: list[Tile] = [
            (
                "in the lake within 60 s",
                formatting.percent(found.share),
                "" if found.share >= limits.WITHIN_SHARE else "bad",
            ),
            ("messages timed", formatting.count(found.timed), ""),
            (
                "slowest message",
                formatting.duration(max((each.max_s or 0.0 for each in found.windows), default=None)),
                "",
            ),
        ]
        about = "From reception at the gateway to the commit in the lake, by the hour of reception."
        return Section("delivery", "Delivery time", about, tiles, charts.delivery(found, self._bands))

    def completeness(self) -> Section | None:
        """Accepted = landed + given up + waiting + unexplained."""
        found = self._known.accounts
        if not found.known:
            return None  # a notice at the top says so
        balance = found.balance
        count = formatting.count
        tiles: list[Tile] = [
            ("accepted by gateways", count(balance.accepted), ""),
            ("= landed", count(balance.landed), ""),
            *((f"+ given up: {reason}", count(number), "") for reason, number in balance.given_up.items()),
            ("+ still at the gateway", count(balance.waiting), ""),
            ("+ unexplained", count(balance.unexplained), "bad" if balance.unexplained else "good"),
            ("duplicates", count(balance.duplicates), "bad" if balance.duplicates else "good"),
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
        return Section("completeness", "Completeness", about, tiles, tables=tables, notes=notes)

    def _addresses(self) -> Table:
        found = self._known.accounts
        heads = ("rows", "accepted", "missing", "given up", "waiting")
        names = ("rows", "accepted", "missing", "explained", "waiting")
        columns = [
            _GATEWAY,
            Column("address", "name"),
            Column("sequences"),
            *(Column(head, "count") for head in heads),
            Column("unexplained", "count", alarm=True),
            Column("duplicates", "count", alarm=True),
        ]
        rows = [
            [
                self._gateway((row["tenant"], row["gateway"])),
                row["address"],
                _numbers(row),
                *(row[name] for name in names),
                row["unexplained"],
                row["duplicates"],
            ]
            for row in found.addresses
        ]
        return Table("Completeness by address", columns, rows, found.addresses_total)

    def _ranges(self) -> Iterator[Table]:
        found = self._known.accounts
        if found.ranges:
            columns = [
                _GATEWAY,
                Column("address", "name"),
                Column("sequences"),
                Column("missing", "count"),
                Column("", "state"),
            ]
            rows = [
                [
                    self._gateway((row["tenant"], row["gateway"])),
                    row["address"],
                    _numbers(row),
                    row["missing"],
                    (0, f"given up: {row['reason']}") if row["explained"] else (2, "unexplained"),
                ]
                for row in found.ranges
            ]
            yield Table("Missing ranges", columns, rows, found.ranges_total)
        if found.hours:
            heads = ("accepted", "landed", "waiting")
            columns = [
                _GATEWAY,
                Column("address", "name"),
                Column("hour", "time"),
                *(Column(head, "count") for head in heads),
                Column("unexplained", "count", alarm=True),
            ]
            hours = [
                [
                    self._gateway((row["tenant"], row["gateway"])),
                    row["address"],
                    row["hour"],
                    *(row[head] for head in heads),
                    row["unexplained"],
                ]
                for row in found.hours
            ]
            yield Table("Hours with something unexplained", columns, hours, len(hours))

    def _flows(self, make: Callable[[Flow, int, Sequence[Band]], Chart]) -> list[Chart]:
        known = self._known
        return [make(flow, known.flows_total, self._bands_of(flow.gateway)) for flow in known.flows]

    def _bands_of(self, gateway: Gateway | None) -> Sequence[Band]:
        """What happened to all, or else when this one was cut off."""
        if self._bands or gateway is None:
            return self._bands
        return charts.outage_bands(self._known.outages, gateway)

    def flow(self) -> Section | None:
        """Received and landed."""
        known = self._known
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
                f"Drawn: the whole fleet, and of {formatting.count(known.flows_total)} gateways the "
                f"{len(known.flows) - 1} "
                "that held most."
            )
        return Section("throughput", "Throughput", about, charts=self._flows(charts.throughput), notes=notes)

    def backlog(self) -> Section | None:
        """What gateways held."""
        if not self._known.flows:
            return None
        about = "Messages a gateway had accepted that were not in the lake yet."
        return Section("backlog", "Backlog and drain", about, charts=self._flows(charts.backlog))

    def freshness(self) -> Section | None:
        """How long messages took, over time."""
        if not self._known.flows:
            return None
        about = (
            "How long messages took from the gateway to the lake: for each moment, the slowest of the messages "
            "that landed then."
        )
        columns = [
            _GATEWAY,
            Column("lag p50", "seconds"),
            Column("lag p95", "seconds"),
            Column("worst", "seconds"),
            Column("late", "share"),
            Column("clock suspect", "count"),
        ]
        slowest = sorted(self._known.members, key=lambda one: -(one.lag_p95_s or 0.0))
        rows = [
            [self._gateway(one.gateway), one.lag_p50_s, one.lag_p95_s, one.lag_max_s, one.late_share, one.suspect]
            for one in slowest[: limits.ROWS_MAX]
        ]
        table = Table("Freshness by gateway", columns, rows, len(slowest))
        return Section("freshness", "Freshness", about, charts=self._flows(charts.lag), tables=[table] if rows else [])

    def outages(self) -> Section | None:
        """When messages had to wait, and how they came."""
        found = self._known.outages
        if not found:
            return None
        columns = [
            _GATEWAY,
            Column("cut off from", "time"),
            Column("until", "time"),
            Column("drain took", "seconds"),
            Column("messages", "count"),
            Column("slowest", "seconds"),
        ]
        rows = [
            [self._gateway(one.gateway), one.began, one.until, one.drain_s, one.messages, one.lag_max_s]
            for one in found[: limits.ROWS_MAX]
        ]
        about = (
            "Stretches in which messages waited at their gateway and came over the backlog lane, those with the "
            "longest delay "
            f"first; to {formatting.duration(found[0].width_s)}. What still waits is in the column waiting of the "
            f"fleet."
        )
        return Section(
            "outages", "Outages and drains", about, tables=[Table("Outages and drains", columns, rows, len(found))]
        )

    def devices(self) -> Section | None:
        """Health of devices."""
        found = self._known.health
        if not found.devices:
            return None
        count = formatting.count
        names = {
            "silent": "silent",
            "battery": "battery ends within 30 d",
            "reboots": "restart often",
            "clock": "clock wrong",
        }
        tiles: list[Tile] = [("devices", count(found.devices), "")]
        tiles += [(names[sign], count(number), "bad" if number else "good") for sign, number in found.signs.items()]
        columns = [
            _GATEWAY,
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
        total = found.devices if self._known.gateway is not None else found.need_a_look
        tables = [Table("Devices that need a look" if self._known.gateway is None else "Devices", columns, rows, total)]
        about = (
            "Of the last 30 days of each device. Silent: its gateway heard others and not it, for more than 5 of "
            "its own intervals."
        )
        return Section("devices", "Device health", about, tiles, tables=tables if rows else [])

    def _device(self, row: dict[str, Any]) -> list[Any]:
        return [
            self._gateway((row["tenant"], row["gateway"])),
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
        found = self._known.anomalies
        if not found.count:
            return None
        tiles: list[Tile] = [("anomalies", formatting.count(found.count), "")]
        tiles += [(rule, formatting.count(number), "") for rule, number in found.rules]
        columns = [
            _GATEWAY,
            Column("device", "name"),
            Column("metric", "name"),
            Column("at", "time"),
            Column("value", "number"),
            Column("expected", "number"),
            Column("rule"),
            Column("score", "number"),
        ]
        rows = [
            [
                self._gateway(one.gateway),
                one.device,
                one.metric,
                one.at,
                one.value,
                one.expected,
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
        known = self._known
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
            notes.append(f"{formatting.count(left)} more metrics are in the tables rollup_1m and rollup_1h.")
        drawn = [self._track(track, known.span) for track in known.tracks if track.windows]
        return Section("metrics", "Metrics", about, charts=drawn, notes=notes)

    def _track(self, track: Track, span: tuple[float, float]) -> Chart:
        chart = charts.track(track, span, self._bands_of(track.gateway))
        if self._known.gateway is None and self._known.flows_total > 1:
            chart.place = f"{charts.name_of(track.gateway)}: {chart.place}"
        return chart

    def lake(self) -> Section | None:
        """Files, sizes, what was set aside or rejected."""
        found = self._known.storage
        tables = list(self._damages())
        if found.tables:
            columns = [
                Column("table", "name"),
                Column("rows", "count"),
                Column("files", "count"),
                Column("size", "bytes"),
                Column("a file", "bytes"),
                Column("version", "count"),
                Column("", "state"),
            ]
            rows = [
                [
                    one.name,
                    one.rows,
                    one.files,
                    one.size,
                    one.mean,
                    one.version,
                    (1, "small files: waypost analytics maintain") if one.small else (0, ""),
                ]
                for one in found.tables
            ]
            tables.append(Table("Tables", columns, rows, len(rows), folded=True))
        if not tables:
            return None
        size = sum(one.size for one in found.tables)
        tiles: list[Tile] = [
            *([("size of all tables", formatting.size(size), "")] if found.tables else []),
            *([("files", formatting.count(sum(one.files for one in found.tables)), "")] if found.tables else []),
            ("damaged files set aside", formatting.count(len(found.set_aside)), "bad" if found.set_aside else "good"),
            ("rejected values", formatting.count(sum(number for _, number in found.rejects)), ""),
            (
                "batches in quarantine",
                formatting.count(sum(number for _, number in found.quarantined)),
                "bad" if found.quarantined else "good",
            ),
        ]
        about = (
            "Nothing is dropped: rejected values are kept in table reject with their message, refused batches in "
            "quarantine."
        )
        return Section("lake", "Lake", about, tiles, tables=tables)

    def _damages(self) -> Iterator[Table]:
        found = self._known.storage
        if found.set_aside:
            columns = [
                Column("table", "name"),
                Column("file", "name"),
                Column("not taken by", "name"),
                Column("rows", "count"),
                Column("gateways"),
                Column("reason"),
                Column("found", "time"),
            ]
            rows = [
                [row["source"], row["path"], row["job"], row["rows"], _between(row), row["reason"], row["found_at"]]
                for row in found.set_aside
            ]
            yield Table("Damaged files set aside", columns, rows[: limits.ROWS_MAX], len(rows))
        for label, pairs in (("Rejected values", found.rejects), ("Quarantined batches", found.quarantined)):
            if pairs:
                yield Table(
                    label, [Column("reason"), Column("number", "count")], [list(pair) for pair in pairs], len(pairs)
                )


def _numbers(row: Mapping[str, Any]) -> str:
    return f"{formatting.count(row['first_sequence'])}\u2013{formatting.count(row['last_sequence'])}"


def _between(row: Mapping[str, Any]) -> str:
    first, last = row["gateway_first"], row["gateway_last"]
    if first is None:
        return "unknown"
    return str(first) if first == last else f"{first} to {last}"
