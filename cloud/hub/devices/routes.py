"""All routes of the device registry."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cloud.hub.devices.http import device_routes
from cloud.hub.devices.local_http import local_device_routes
from cloud.hub.devices.requests import TenantAccess
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.devices.tenants_http import device_tenant_routes
from edge.broker.http.access import HttpAccess
from edge.broker.http.route import HttpRoute


def device_registry_routes(
    registry: DeviceRegistry, access: HttpAccess, names: Callable[[], Collection[str]]
) -> list[HttpRoute]:
    """Return the routes. `names` returns the known tenants of the hub."""
    tenants = TenantAccess(registry, access, names)
    local = local_device_routes(registry, access)
    return [*device_routes(registry, tenants), *device_tenant_routes(registry, tenants), *local]
