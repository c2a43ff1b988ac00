"""Everything a page says, read from the derived tables with delta-rs: no JVM, and no Spark import.

`waypost analytics report --json` prints this. A table that is not there has no rows; the page says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec

from cloud.place.place import Somewhere
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
    """Everything on the page.

    `gateway`       whose page it is; None: the fleet's.
    `landed`        messages in the lake at the version of `telemetry` that the page is of.
    `landed_since`  messages that came after it.
    `telemetry`     that version; None before the first job, or when the tables are `mixed`.
    `readings_at`   where readings and rejects stand when they are not of that version.
    `tracks_at`     where the rollups stand that the metrics are drawn from.
    `tracks_since`  the first moment that they are drawn of, where older windows were not looked at.
    `members`       gateways, the worst first.
    `recency`       the clock of the page, when the newest data of the lake landed, and the newest that the tables know.
    `newest_at`     when the newest data of the lake landed, seconds since 1970.
    `never_made`    tables that no job has made yet, and the job that makes each: what they have is unknown.
    `as_of`         when the newest data landed that each table knows, seconds since 1970, where its commits say so.
    `tracks_of`     the table of rollups that the metrics are drawn from.
    `strips`        the last hours of the gateways that need a look most.
    `weeks`         last week and the one before it; None where the lake has not both.
    `findings`      what needs a look, the worst first.
    `outages`       those with the longest delay, the longest first; `outages_total` how many there were.
    `changes`       of the last day; None where the lake is younger.
    `metrics_total` metrics of devices; 0 where there are too many to count.
    `unreadable`    tables that could not be read, and what to do; nothing is drawn of them.
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
        """First and last second there is anything to draw of; None without rows."""
        if not self.flows:
            return None
        return min(flow.start for flow in self.flows), max(flow.end for flow in self.flows)


class ReportReader:
    """The lake as it was when this was made: the fleet's page and those of gateways are of one state.

    `without`: tables that are left out, and why. It and every page raise `TableUnreadable`; `readable` has an answer.
    """

    def __init__(self, lake: Somewhere, now: datetime | None = None, without: Mapping[str, str] | None = None) -> None:
        self._taken = snapshot.take_snapshot(lake, without)
        self._now = now or datetime.now(UTC)
        self._recency: Recency | None = None
        self._as_of: dict[str, float] | None = None

    def fleet(self) -> LakeFigures:
        """All gateways."""
        return self._read(None)

    def gateway(self, gateway: Gateway) -> LakeFigures:
        """One of them."""
        return self._read(gateway)

    def named(self, name: str) -> Gateway:
        """The gateway that is called so, `NAME` or `TENANT/NAME`. Raises `names.NoGateway`."""
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
        """Of the tables, the same on every page."""
        if self._as_of is None:
            self._as_of = recency.as_of(self._taken)
        return self._as_of

    def _recency_of_lake(self) -> Recency:
        """Of the whole lake, whichever page asks."""
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


def read_without_broken(lake: Somewhere, draw: Callable[[ReportReader], Drawn], now: datetime | None = None) -> Drawn:
    """Return what `draw` makes of a lake: started again without each table that cannot be read. `now`: the time
    that ages are counted from [default: this machine's clock]."""
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


def read(lake: Somewhere, now: datetime | None = None) -> LakeFigures:
    """Return the fleet's page of a lake, as at `now` [default: this machine's clock]."""
    return read_without_broken(lake, ReportReader.fleet, now)


def count_rejected(known: LakeFigures) -> int:
    """Values that could not be read."""
    return sum(one.number for one in known.storage.rejects)


def encode(known: LakeFigures | Iterable[LakeFigures]) -> bytes:
    """As JSON: times are ISO 8601, or seconds since 1970 where they are numbers."""
    return msgspec.json.encode(_plain(known))


def _plain(value: object) -> object:
    """Keys of JSON's objects are text: a gateway is `tenant/name` there."""
    built = msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=False)
    return _text_keys(built)


def _text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {"/".join(key) if isinstance(key, tuple) else key: _text_keys(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_text_keys(each) for each in value]
    return value
