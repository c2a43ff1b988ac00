"""State of a tenant for everything that makes something in it: nothing is made in a removed one, and its name is not
given out again."""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.schema import tenant_removals
from cloud.hub.tenants import TenantRemoved


def require_tenant(tx: sa.Connection, tenant: str) -> None:
    """Check that a tenant was not removed. Raises `TenantRemoved`."""
    if is_removed(tx, tenant):
        raise TenantRemoved(tenant)


def is_removed(tx: sa.Connection, tenant: str) -> bool:
    """Return whether a tenant was removed, or is being removed."""
    mine = tenant_removals.c.tenant == tenant
    return tx.execute(sa.select(tenant_removals.c.tenant).where(mine)).first() is not None
