"""Numbers of gateways by condition, of all tenants or by site, and by version, and the latest troubles.

Each reads the whole fleet, for a thread that only reads, and a caller that keeps the result for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.registry.directory import RECORD, GatewayRecord
from cloud.hub.registry.fleet_pages import conditions_of
from cloud.hub.registry.schema import gateways, labels

ConditionCounts = Mapping[str, int]
"""Gateways by condition."""
IN_DANGER: Final = (FleetCondition.REFUSING, FleetCondition.OFFLINE, FleetCondition.BEHIND)
"""Conditions of gateways that have connected and are not well."""
_KNOWN: Final = gateways.c.forgotten_at.is_(None)


class ConnectionCount(NamedTuple):
    """Number of known gateways with the same tenant, hub and state."""

    tenant: str
    hub: str | None
    """Writer id of the hub of the last connection."""
    connected: bool
    gateways: int


def count_connections(tx: sa.Connection) -> list[ConnectionCount]:
    """Return the numbers of known gateways that have connected."""
    columns = (gateways.c.tenant, gateways.c.writer, gateways.c.connected)
    query = sa.select(*columns, sa.func.count()).where(_KNOWN).group_by(*columns)
    return [ConnectionCount(*row) for row in tx.execute(query)]


def _condition(behind_us: int) -> sa.ColumnElement[str]:
    """Return the condition of a gateway that has connected."""
    cases = [(sa.and_(*conditions_of(one, behind_us)), sa.literal(one.value)) for one in IN_DANGER]
    return sa.case(*cases, else_=sa.literal(FleetCondition.WELL.value))


def count_conditions(tx: sa.Connection, behind_us: int) -> dict[str, ConditionCounts]:
    """Return the known gateways that have connected of each tenant, by condition."""
    condition = _condition(behind_us).label("state")
    query = sa.select(gateways.c.tenant, condition, sa.func.count()).where(_KNOWN)
    found: dict[str, ConditionCounts] = {}
    for tenant, state, count in tx.execute(query.group_by(gateways.c.tenant, "state")):
        found[tenant] = {**found.get(tenant, {}), state: count}
    return found


def count_label(tx: sa.Connection, tenant: str | None, label: str, behind_us: int) -> dict[str, Counter[str]]:
    """Return the gateways that have connected and have a label, by its value and condition."""
    condition = _condition(behind_us).label("state")
    same = (labels.c.tenant == gateways.c.tenant) & (labels.c.gateway == gateways.c.name)
    scope = () if tenant is None else (gateways.c.tenant == tenant, labels.c.tenant == tenant)
    query = sa.select(labels.c.value, condition, sa.func.count()).select_from(gateways.join(labels, same))
    query = query.where(labels.c.key == label, _KNOWN, *scope).group_by(labels.c.value, "state")
    found: dict[str, Counter[str]] = {}
    for value, state, count in tx.execute(query):
        found.setdefault(value, Counter())[state] = count
    return found


class VersionCount(NamedTuple):
    """Gateways with one version of their program."""

    version: str | None
    """None: not reported."""
    gateways: int


def count_versions(tx: sa.Connection, tenant: str | None, most: int) -> list[VersionCount]:
    """Return the known gateways that have connected by version, the newest first: the `most` most frequent ones."""
    version, rank = gateways.c.version, gateways.c.version_rank
    scope = () if tenant is None else (gateways.c.tenant == tenant,)
    query = sa.select(rank, version, sa.func.count().label("count")).where(_KNOWN, *scope).group_by(rank, version)
    rows = tx.execute(query.order_by(sa.desc("count"), rank.desc(), version).limit(most)).all()
    ordered = sorted(rows, key=lambda row: (-row[0], row[1] is None, row[1] or ""))
    return [VersionCount(row[1], row[2]) for row in ordered]


def latest_troubles(tx: sa.Connection, tenant: str | None, behind_us: int, most: int) -> list[GatewayRecord]:
    """Return the gateways with the latest troubles: at most `most` of each condition."""
    scope = () if tenant is None else (gateways.c.tenant == tenant,)
    begins = {
        FleetCondition.REFUSING: gateways.c.last_seen,
        FleetCondition.OFFLINE: gateways.c.last_seen,
        FleetCondition.BEHIND: gateways.c.oldest_at,
    }
    found: list[GatewayRecord] = []
    for condition, begin in begins.items():
        query = sa.select(*RECORD).where(_KNOWN, *scope, *conditions_of(condition, behind_us))
        found += (GatewayRecord(*row) for row in tx.execute(query.order_by(begin.desc()).limit(most)))
    return found
