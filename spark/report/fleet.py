"""The fleet: one row per gateway, those that need a look first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from spark import amounts
from spark.report import formatting, limits
from spark.report.accounts import Accounts
from spark.report.delivery import DeliveryTimes
from spark.report.devices import DeviceHealth
from spark.report.outages import Outages
from spark.report.tables import Gateway, ReportTables, group_by_gateway
from spark.report.tracks import Anomalies

State = Literal["ok", "look", "wrong"]
_RANK = {"wrong": 2, "look": 1, "ok": 0}
_COLUMNS = (
    "tenant",
    "gateway",
    "device",
    "rows",
    "first_event_time",
    "last_event_time",
    "last_ingested_at",
    "lag_p50_s",
    "lag_p95_s",
    "lag_max_s",
    "late_share",
    "suspect_rows",
)


class GatewaySummary(msgspec.Struct):
    """A gateway with its state.

    `why` has the reasons for `state`, the worst first; `silent_s` is counted from now. None: unknown, because nothing
    has landed or the job has not run.
    """

    gateway: Gateway
    rows: int
    first_at: float | None = None
    last_at: float | None = None
    silent_s: float | None = None
    lag_p50_s: float | None = None
    lag_p95_s: float | None = None
    lag_max_s: float | None = None
    late_share: float = 0.0
    suspect: int = 0
    within_share: float | None = None
    given_up: int | None = None
    waiting: int | None = None
    unexplained: int | None = None
    duplicates: int | None = None
    outages: int = 0
    devices: int = 0
    devices_ill: int = 0
    anomalies: int = 0
    state: State = "ok"
    why: list[str] = []


class GatewayFigures(msgspec.Struct):
    """Further figures of gateways."""

    accounts: Accounts
    delivery: DeliveryTimes
    health: DeviceHealth
    outages: Outages
    anomalies: Anomalies


def gateways(tables: ReportTables) -> set[Gateway]:
    """Return all gateways that have a page: those with landed messages or with statements of accepted ones."""
    return {
        gateway
        for name in ("gateway_freshness", "completeness")
        for gateway in group_by_gateway(tables.parts(name, ("tenant", "gateway")))
    }


def read(tables: ReportTables, parts: GatewayFigures) -> list[GatewaySummary]:
    """Return all known gateways."""
    found = {}
    for row in tables.read("gateway_freshness", _COLUMNS).to_pylist():
        if row["device"] is None:
            member = _member(row)
            found[member.gateway] = member
    for gateway in parts.accounts.by_gateway:
        if gateway not in found:
            found[gateway] = GatewaySummary(gateway, 0)
    waits = tables.rows("gateway_backlog", ("tenant", "gateway", "waiting"))
    _add(found, parts, {(row["tenant"], row["gateway"]): row["waiting"] for row in waits})
    return list(found.values())


def judge(members: list[GatewaySummary], silences: Mapping[Gateway, float]) -> list[GatewaySummary]:
    """Set silence, state and reasons of each gateway. Return the worst first."""
    for member in members:
        member.silent_s = silences.get(member.gateway)
        _judge(member)
    return sorted(members, key=_order)


def _member(row: dict[str, Any]) -> GatewaySummary:
    return GatewaySummary(
        (row["tenant"], row["gateway"]),
        row["rows"],
        first_at=row["first_event_time"].timestamp(),
        last_at=row["last_ingested_at"].timestamp(),
        lag_p50_s=row["lag_p50_s"],
        lag_p95_s=row["lag_p95_s"],
        lag_max_s=row["lag_max_s"],
        late_share=row["late_share"],
        suspect=row["suspect_rows"],
    )


def _add(found: dict[Gateway, GatewaySummary], parts: GatewayFigures, waiting: dict[Gateway, int | None]) -> None:
    for gateway, member in found.items():
        member.outages = parts.outages.by_gateway.get(gateway, 0)
        member.waiting = waiting.get(gateway)
        account = parts.accounts.by_gateway.get(gateway)
        if account is not None:
            member.given_up, member.unexplained = account["explained"], account["unexplained"]
            member.duplicates = account["duplicates"]
        times = parts.delivery.by_gateway.get(gateway)
        if times is not None and times["timed_sum"]:
            member.within_share = times["within_sum"] / times["timed_sum"]
        health = parts.health.by_gateway.get(gateway)
        if health is not None:
            member.devices, member.devices_ill = health["device_count"], health["ill_sum"]
        unusual = parts.anomalies.by_gateway.get(gateway)
        member.anomalies = unusual["value_count"] if unusual is not None else 0


def _judge(member: GatewaySummary) -> None:
    wrong, look = [], []
    if member.unexplained:
        wrong.append(f"{amounts.count(member.unexplained)} unexplained")
    if member.duplicates:
        wrong.append(f"{amounts.count(member.duplicates)} twice")
    if member.silent_s is not None and member.silent_s > limits.SILENT_S:
        look.append(f"silent {formatting.duration(member.silent_s)}")
    if member.within_share is not None and member.within_share < limits.WITHIN_SHARE:
        look.append(f"{formatting.percent(member.within_share)} in time")
    if member.given_up:
        look.append(f"{amounts.count(member.given_up)} given up")
    if member.devices_ill:
        devices = "device" if member.devices_ill == 1 else "devices"
        look.append(f"{amounts.count(member.devices_ill)} unhealthy {devices}")
    if member.suspect:
        look.append("clock wrong")
    member.why = wrong + look
    member.state = "wrong" if wrong else "look" if look else "ok"


def _order(member: GatewaySummary) -> tuple[Any, ...]:
    lacks = (member.unexplained or 0) + (member.duplicates or 0)
    late = 1.0 - member.within_share if member.within_share is not None else 0.0
    silent = member.silent_s or 0.0
    return (
        -_RANK[member.state],
        -lacks,
        -(silent if silent > limits.SILENT_S else 0.0),
        -late,
        -(member.lag_p95_s or 0.0),
        member.gateway,
    )
