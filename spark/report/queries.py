"""All figures of a page, read from the derived tables with delta-rs, without a JVM or Spark.

`waypost report --json` prints this. A missing table has no rows; the page names missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec

from cloud.place.place import LakeLocation
from spark.lineage import TableState
from spark.report import (
    accounts,
    changes,
    columns,
    delivery,
    devices,
    findings,
    fleet,
    flows,
    limits,
    missing_tables,
    names,
    outages,
    recency,
    snapshot,
    storage,
    strips,
    tracks,
    weeks,
)
from spark.report.accounts import Accounts
from spark.report.changes import Changes
from spark.report.delivery import DeliveryTimes
from spark.report.devices import DeviceHealth
from spark.report.findings import ReportFinding
from spark.report.fleet import GatewaySummary
from spark.report.flows import MessageFlow
from spark.report.outages import Outage
from spark.report.recency import Recency
from spark.report.storage import Storage
from spark.report.strips import Strips
from spark.report.tables import Gateway, ReportTables
from spark.report.tracks import Anomalies, Track
from spark.report.weeks import Weeks
from spark.table_errors import TableUnreadable

Drawn = TypeVar("Drawn")


class LakeFigures(msgspec.Struct):
    """All figures of the page.

    `gateway`       the gateway of the page; None: the fleet.
    `landed`        messages in the lake at the page's version of `telemetry`.
    `landed_since`  messages that came after it.
    `telemetry`     that version; None before the first job, or if the tables are `mixed`.
    `readings_at`   the state of readings and rejects if they are not of that version.
    `tracks_at`     the state of the rollups that the metrics are drawn from.
    `tracks_since`  the first time that is drawn, if older windows were not read.
    `members`       gateways, the worst first.
    `recency`       the clock of the page, the landing of the newest data, and the newest data that the tables know.
    `newest_at`     landing of the newest data of the lake, in seconds since 1970.
    `never_made`    tables that no job has made yet, with their job: their figures are unknown.
    `as_of`         landing of the newest data that each table knows, in seconds since 1970, if its commits say so.
    `tracks_of`     the table of rollups that the metrics are drawn from.
    `strips`        the last hours of the gateways that most need a look.
    `weeks`         last week and the week before it; None if the lake does not have both.
    `findings`      findings, the worst first.
    `outages`       outages with the longest delay, longest first; `outages_total` is their number.
    `changes`       changes of the last day; None if the lake is younger.
    `metrics_total` metrics of devices; 0 if there are too many to count.
    `unreadable`    tables that could not be read, and what to do; they are not drawn.
    """

    gateway: Gateway | None
    made_at: datetime
    landed: int
    landed_since: int
    telemetry: TableState | None
    mixed: bool
    readings: int
    members: list[GatewaySummary]
    recency: Recency
    newest_at: float | None
    flows: list[MessageFlow]
    flows_total: int
    changes: Changes | None
    accounts: Accounts
    delivery: DeliveryTimes
    outages: list[Outage]
    outages_total: int
    health: DeviceHealth
    anomalies: Anomalies
    storage: Storage
    tracks: list[Track]
    metrics_total: int
    versions: dict[str, int]
    readings_at: snapshot.TableStanding | None = None
    tracks_at: snapshot.TableStanding | None = None
    tracks_since: float | None = None
    unreadable: dict[str, str] = {}
    never_made: dict[str, str] = {}
    findings: list[ReportFinding] = []
    as_of: dict[str, float] = {}
    tracks_of: str = ""
    strips: Strips = msgspec.field(default_factory=Strips)
    weeks: Weeks | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """Return the first and last second to draw; None without rows."""
        if not self.flows:
            return None
        return min(flow.start for flow in self.flows), max(flow.end for flow in self.flows)


class ReportReader:
    """A lake at the time of creation, so that the pages of fleet and gateways agree.

    `without`: tables to leave out, with reasons. Creation and each page raise `TableUnreadable`; `readable` handles it.
    """

    def __init__(
        self, lake: LakeLocation, now: datetime | None = None, without: Mapping[str, str] | None = None
    ) -> None:
        self._taken = snapshot.take_snapshot(lake, without)
        self._now = now or datetime.now(UTC)
        self._recency: Recency | None = None
        self._as_of: dict[str, float] | None = None

    def fleet(self) -> LakeFigures:
        """Return the page of all gateways."""
        return self._read(None)

    def gateway(self, gateway: Gateway) -> LakeFigures:
        """Return the page of one gateway."""
        return self._read(gateway)

    def named(self, name: str) -> Gateway:
        """Return the gateway with this name, `NAME` or `TENANT/NAME`. Raises `names.NoGateway`."""
        return names.find_gateway(name, fleet.gateways(ReportTables(self._taken)))

    def _read(self, only: Gateway | None) -> LakeFigures:
        taken, tables = self._taken, ReportTables(self._taken, only)
        of_lake = self._recency_of_lake()
        silences = recency.measure_silences(tables, of_lake)
        account = accounts.read(tables)
        total = tables.rows_in_all("telemetry") if only is None else account.balance.rows
        parts = fleet.GatewayFigures(
            account,
            delivery.read(tables),
            devices.read(tables, silences, everyone=only is not None),
            outages.read(tables),
            tracks.read_anomalies(tables),
        )
        members = fleet.judge(fleet.read(tables, parts), silences)
        flows_drawn, flows_total = flows.read(tables)
        landed = account.balance.rows if account.known else total
        figures = LakeFigures(
            gateway=only,
            made_at=self._now,
            landed=landed,
            landed_since=max(0, total - landed),
            telemetry=taken.telemetry,
            mixed=taken.mixed,
            readings=tables.rows_in_all("readings") if only is None else tables.count("readings"),
            members=members,
            recency=of_lake,
            newest_at=of_lake.landed_at,
            flows=flows_drawn,
            flows_total=flows_total,
            changes=changes.read(
                members, of_lake.now, partial(outages.count_ended, tables), parts.anomalies, parts.health
            ),
            accounts=account,
            delivery=parts.delivery,
            outages=parts.outages.longest,
            outages_total=parts.outages.total,
            health=parts.health,
            anomalies=parts.anomalies,
            storage=storage.read(taken, tables),
            tracks=[],
            metrics_total=0,
            versions={name: table.version() for name, table in taken.tables.items()},
            readings_at=taken.apart.get("readings"),
            unreadable=dict(taken.unreadable),
            never_made=missing_tables.find_never_made(taken),
            as_of=self._ages(),
            strips=strips.read(tables, [member.gateway for member in members[: limits.SPARKS_MAX]], of_lake),
            weeks=weeks.read(tables, of_lake.now, parts.delivery, parts.anomalies),
        )
        self._add_tracks(figures, tables)
        if landed:
            of = (members, account.balance, parts.health, figures.storage)
            figures.findings = findings.find_problems(*of, alone=only is not None)
        return figures

    def _ages(self) -> dict[str, float]:
        """Return the ages of the tables, the same on each page."""
        if self._as_of is None:
            self._as_of = recency.as_of(self._taken)
        return self._as_of

    def _recency_of_lake(self) -> Recency:
        """Return the recency of the whole lake, the same on each page."""
        if self._recency is None:
            self._recency = recency.read(self._taken, self._now.timestamp())
        return self._recency

    def _add_tracks(self, figures: LakeFigures, tables: ReportTables) -> None:
        if self._taken.telemetry is not None:
            figures.versions["telemetry"] = self._taken.telemetry.version
        if figures.span is not None:
            name, _ = tracks.choose_rollup(figures.span)
            drawn = tracks.read(tables, figures.span, figures.anomalies.newest)
            figures.tracks, figures.metrics_total, figures.tracks_since = drawn
            figures.tracks_of, figures.tracks_at = name, self._taken.apart.get(name)


def read_without_broken(
    lake: LakeLocation, draw: Callable[[ReportReader], Drawn], now: datetime | None = None
) -> Drawn:
    """Return the result of `draw` for a lake, repeated without each table that cannot be read.

    `now`: the time that ages are counted from [default: this machine's clock].
    """
    without: dict[str, str] = {}
    now = now or datetime.now(UTC)
    while True:
        try:
            return draw(ReportReader(lake, now, without))
        except TableUnreadable as error:
            found = error
        except columns.FAILURES:
            mistyped = columns.find_mistyped(lake, without)
            if mistyped is None:
                raise
            found = mistyped
        if found.table in without:
            raise found
        without[found.table] = str(found)


def read(lake: LakeLocation, now: datetime | None = None) -> LakeFigures:
    """Return the fleet's page of a lake, as at `now` [default: this machine's clock]."""
    return read_without_broken(lake, ReportReader.fleet, now)


def count_rejected(known: LakeFigures) -> int:
    """Return the number of values that could not be read."""
    return sum(one.number for one in known.storage.rejects)


def encode(known: LakeFigures | Iterable[LakeFigures]) -> bytes:
    """Return the figures as JSON: times are ISO 8601, or seconds since 1970 if they are numbers."""
    return msgspec.json.encode(_plain(known))


def _plain(value: object) -> object:
    """Return a value for JSON. Keys of JSON objects are text, so a gateway becomes `tenant/name`."""
    built = msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=False)
    return _text_keys(built)


def _text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {"/".join(key) if isinstance(key, tuple) else key: _text_keys(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_text_keys(each) for each in value]
    return value
