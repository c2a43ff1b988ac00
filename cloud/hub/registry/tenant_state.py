"""State of a tenant for those who make something in it: while it is being removed, nothing may be made."""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.schema import tenant_removals
from cloud.hub.tenants import TenantBeingRemoved


def require_tenant(tx: sa.Connection, tenant: str) -> None:
    """Check that a tenant is not being removed. Raises `TenantBeingRemoved`."""
    mine = (tenant_removals.c.tenant == tenant, tenant_removals.c.ended_at.is_(None))
    if tx.execute(sa.select(tenant_removals.c.tenant).where(*mine)).first() is not None:
        raise TenantBeingRemoved(tenant)
