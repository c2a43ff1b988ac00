"""Choices of the user for an import."""

from __future__ import annotations

from typing import NamedTuple

from cloud.fleet.hono.documents import GatewayChoice


class HonoImportPlan(NamedTuple):
    """Choices of the user for an import."""

    owner: str = ""
    """Tenant of the hub for new tenants that may have another one."""
    choice: GatewayChoice = GatewayChoice()
    add_missing: bool = False
    """Add devices that are missing in a tenant that was there before."""
    plain_keys: bool = False
    """Hono's MongoDB has the pre-shared keys without encryption."""
    dry_run: bool = False
