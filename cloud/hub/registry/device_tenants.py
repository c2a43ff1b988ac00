"""Tenants of devices in the registry: documents, trust anchors, and the counter of revisions.

Every change of a tenant or of its devices gets the next revision of that tenant. Revisions begin at the time of the
tenant in microseconds, so that those of a tenant that was removed and added again are higher than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_search import SearchedTable, SearchQuery, conditions, order_by
from cloud.hub.registry.device_targets import forget_targets
from cloud.hub.registry.schema import device_tenants, trust_anchors
from cloud.hub.registry.tenant_state import require_tenant

Check = Callable[[int | None], None]
"""Gets the revision of what a request changes, None if it does not exist; raises to prevent the change."""

_TABLE: Final = SearchedTable(
    device_tenants.c.tenant,
    device_tenants.c.document,
    {
        ("id",): device_tenants.c.tenant,
        ("status", "created"): device_tenants.c.created_at,
        ("status", "updated"): device_tenants.c.updated_at,
    },
    frozenset({("status", "created"), ("status", "updated")}),
)


@hides("document")
class DeviceTenantRow(NamedTuple):
    """Tenant of devices. Times are UTC microseconds."""

    tenant: str
    owner: str
    """Tenant of the hub: its users manage this one."""
    document: str
    revision: int
    last_revision: int
    """Latest revision of the tenant and its devices."""
    devices: int
    created_at: int
    updated_at: int
    updated_by: str


class TrustAnchorRow(NamedTuple):
    """Subject of a certificate authority that a tenant trusts."""

    subject: str
    group: str | None
    """Group of tenants that may trust authorities with the same subject."""


@hides("document")
class TenantChange(NamedTuple):
    """New state of a tenant."""

    tenant: str
    document: str
    anchors: Sequence[TrustAnchorRow]
    at_us: int
    by: str


class FoundTenants(NamedTuple):
    """Page of tenants."""

    rows: list[DeviceTenantRow]
    total: int


class AnchorTaken(Exception):
    """A tenant outside the group trusts an authority with the same subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"another tenant trusts an authority with the subject {subject}")
        self.subject: Final = subject


class UnknownDeviceTenant(Exception):
    """There is no such tenant of devices."""


class TenantsOfOwnerFull(Exception):
    """The tenant of the hub has as many tenants of devices as it may have."""


_ROW = [device_tenants.c[name] for name in DeviceTenantRow._fields]


class DeviceTenants:
    """Tenants of devices, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, tenant: str) -> DeviceTenantRow | None:
        """Return a tenant; None if unknown."""
        return self._database.transaction(lambda tx: tenant_row(tx, tenant))

    def search(self, owner: str | None, query: SearchQuery) -> FoundTenants:
        """Return a page of the tenants of an owner, or of all. Raises `UnsearchableField`."""

        def work(tx: sa.Connection) -> FoundTenants:
            which = conditions(tx.dialect.name, _TABLE, query)
            if owner is not None:
                which.append(device_tenants.c.owner == owner)
            counting = sa.select(sa.func.count()).select_from(device_tenants).where(*which)
            wanted = sa.select(*_ROW).where(*which).order_by(*order_by(tx.dialect.name, _TABLE, query.orders))
            if query.page.after:
                wanted = wanted.where(device_tenants.c.tenant > query.page.after)
            rows = tx.execute(wanted.limit(query.page.limit).offset(query.page.offset)).all()
            return FoundTenants([DeviceTenantRow(*row) for row in rows], int(tx.execute(counting).scalar_one()))

        return self._database.transaction(work)

    def put(self, change: TenantChange, owner: str, most: int, check: Check) -> int:
        """Add or replace a tenant; return its revision. `owner` is that of a new one; `most`: tenants of an owner.
        Raises `AnchorTaken`, `TenantsOfOwnerFull`, and what `check` raises."""

        def work(tx: sa.Connection) -> int:
            there = tenant_row(tx, change.tenant)
            check(there.revision if there is not None else None)
            if there is None:
                _require_room(tx, owner, most)
                add_tenant(tx, change.tenant, owner, change.document, change.at_us, change.by)
                revision = change.at_us
            else:
                revision = raise_revision(tx, there)
                changed = {"document": change.document, "updated_at": change.at_us, "updated_by": change.by}
                mine = device_tenants.c.tenant == change.tenant
                tx.execute(device_tenants.update().where(mine).values(**changed, revision=revision))
            _put_anchors(tx, change)
            return revision

        return self._database.transaction(work)

    def remove(self, tenant: str, check: Check) -> bool:
        """Remove a tenant without devices; return False if it has some. Raises `UnknownDeviceTenant`, and what `check`
        raises."""

        def work(tx: sa.Connection) -> bool:
            there = tenant_row(tx, tenant)
            if there is None:
                raise UnknownDeviceTenant(tenant)
            check(there.revision)
            if there.devices:
                return False
            forget_targets(tx, tenant)
            tx.execute(trust_anchors.delete().where(trust_anchors.c.tenant == tenant))
            tx.execute(device_tenants.delete().where(device_tenants.c.tenant == tenant))
            return True

        return self._database.transaction(work)


def tenant_row(tx: sa.Connection, tenant: str) -> DeviceTenantRow | None:
    """Return a tenant; None if unknown."""
    row = tx.execute(sa.select(*_ROW).where(device_tenants.c.tenant == tenant)).first()
    return None if row is None else DeviceTenantRow(*row)


def add_tenant(tx: sa.Connection, tenant: str, owner: str, document: str, at_us: int, by: str) -> None:
    """Add a tenant without devices. Raises `TenantRemoved`."""
    require_tenant(tx, owner)
    row = DeviceTenantRow(tenant, owner, document, at_us, at_us, 0, at_us, at_us, by)
    tx.execute(device_tenants.insert().values(**row._asdict(), tracked_revision=at_us))


def raise_revision(tx: sa.Connection, tenant: DeviceTenantRow, devices: int = 0) -> int:
    """Return the next revision of a tenant, and count devices that the transaction adds or, negative, removes."""
    mine, revision = device_tenants.c.tenant == tenant.tenant, tenant.last_revision + 1
    raised = {
        "last_revision": revision,
        "devices": tenant.devices + devices,
        "tracked_revision": device_tenants.c.tracked_revision + 1,
    }
    tx.execute(device_tenants.update().where(mine).values(raised))
    return revision


def _require_room(tx: sa.Connection, owner: str, most: int) -> None:
    counting = sa.select(sa.func.count()).select_from(device_tenants).where(device_tenants.c.owner == owner)
    if tx.execute(counting).scalar_one() >= most:
        raise TenantsOfOwnerFull(f"tenant {owner} has {most} tenants of devices, the most that one may have")


def _put_anchors(tx: sa.Connection, change: TenantChange) -> None:
    """Replace the trust anchors of a tenant. Raises `AnchorTaken`."""
    tx.execute(trust_anchors.delete().where(trust_anchors.c.tenant == change.tenant))
    for anchor in {each.subject: each for each in change.anchors}.values():
        others = sa.select(trust_anchors.c.anchor_group).where(trust_anchors.c.subject == anchor.subject)
        for (group,) in tx.execute(others):
            if group is None or group != anchor.group:
                raise AnchorTaken(anchor.subject)
        row = {"subject": anchor.subject, "tenant": change.tenant, "anchor_group": anchor.group}
        tx.execute(trust_anchors.insert().values(**row))
