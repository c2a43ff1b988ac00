"""Messages and bytes of each tenant and day (UTC) in the registry. Several hubs add to the same rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import USAGE_DAYS_KEPT
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import PARAMETERS_MAX, gateways, tenant_removals, usage


class TenantAmount(NamedTuple):
    """Messages of a tenant that landed, and their bytes."""

    tenant: str
    messages: int
    bytes: int
    """Without compression, with their properties."""


class DayAmount(NamedTuple):
    """Messages of one day that landed, and their bytes."""

    day: int
    """Days since 1970, UTC."""
    messages: int
    bytes: int


class TenantUsage:
    """Usage of tenants, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, day: int, amounts: Sequence[TenantAmount]) -> None:
        """Add to the amounts of a day; delete days that are older than `USAGE_DAYS_KEPT`."""

        def work(tx: sa.Connection) -> None:
            for tenant, messages, size in amounts:
                mine = (usage.c.tenant == tenant, usage.c.day == day)
                more = {"messages": usage.c.messages + messages, "bytes": usage.c.bytes + size}
                if not tx.execute(usage.update().where(*mine).values(**more)).rowcount:
                    tx.execute(usage.insert().values(tenant=tenant, day=day, messages=messages, bytes=size))
            tx.execute(usage.delete().where(usage.c.day <= day - USAGE_DAYS_KEPT))

        self._database.transaction(work)

    def days(self, tenant: str, since: int) -> list[DayAmount]:
        """Return the days of a tenant from a day on, the latest first. Days without a message are left out."""
        columns = (usage.c.day, usage.c.messages, usage.c.bytes)
        query = sa.select(*columns).where(usage.c.tenant == tenant, usage.c.day >= since)
        rows = self._database.transaction(lambda tx: tx.execute(query.order_by(usage.c.day.desc())).all())
        return [DayAmount(*row) for row in rows]

    def gateways(self) -> dict[str, int]:
        """Return the number of gateways of each tenant that has some, or a usage; not those that were removed."""
        removed = sa.select(tenant_removals.c.tenant).where(tenant_removals.c.ended_at.is_not(None))
        counted = sa.select(gateways.c.tenant, sa.func.count()).where(gateways.c.forgotten_at.is_(None))

        def work(tx: sa.Connection) -> dict[str, int]:
            named = (
                tx.execute(sa.select(usage.c.tenant).where(usage.c.tenant.not_in(removed)).distinct()).scalars().all()
            )
            counts = tx.execute(counted.group_by(gateways.c.tenant)).all()
            return {**dict.fromkeys(named, 0), **{row[0]: row[1] for row in counts}}

        return self._database.transaction(work)

    def sums(self, tenants: Collection[str], since: int) -> dict[str, TenantAmount]:
        """Return the sums of tenants from a day on; those without a message are left out."""
        names = sorted(tenants)
        sums = (sa.func.sum(usage.c.messages), sa.func.sum(usage.c.bytes))
        query = sa.select(usage.c.tenant, *sums).where(usage.c.day >= since).group_by(usage.c.tenant)

        def work(tx: sa.Connection) -> dict[str, TenantAmount]:
            found: dict[str, TenantAmount] = {}
            for start in range(0, len(names), PARAMETERS_MAX - 1):
                some = names[start : start + PARAMETERS_MAX - 1]
                for tenant, messages, size in tx.execute(query.where(usage.c.tenant.in_(some))):
                    found[tenant] = TenantAmount(tenant, int(messages), int(size))
            return found

        return self._database.transaction(work)
