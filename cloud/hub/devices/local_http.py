"""Devices that were added at gateways, over HTTP.

``GET /api/v1/local-devices``  a page by name: ``?gateway=&after=&limit=&tenant=``

It needs the right to view: for one's own tenant, or with ``$fleet`` and ``?tenant=`` for every tenant.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.devices.http import answered
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.json_http import json_response
from cloud.hub.page_position import decode_position, encode_position
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.registry.local_devices import LocalDevice
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

LOCAL_DEVICES: Final = "/api/v1/local-devices"
_CursorPart = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z", max_length=255)]


class LocalDeviceDocument(msgspec.Struct, kw_only=True):
    """Device that was added at a gateway, with `waypost device add` or its configuration."""

    device: str
    """Its name."""
    gateway: str
    """Gateway at which it was added, and works."""
    conflict: bool
    """True: the registry has given this gateway a device with its name, which is not let in there."""


class LocalDevicePage(msgspec.Struct, kw_only=True):
    """Page of devices, by name and gateway."""

    devices: list[LocalDeviceDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


def local_device_routes(registry: DeviceRegistry, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _LocalDevicesApi(registry, access)
    return [HttpRoute(LOCAL_DEVICES, answered(api.page), methods=PURE)]


def local_device_document(row: LocalDevice) -> LocalDeviceDocument:
    """Return the document of a device."""
    return LocalDeviceDocument(device=row.device, gateway=row.gateway, conflict=row.conflict)


class _LocalDevicesApi:
    """Endpoint. It raises what `answered` translates."""

    def __init__(self, registry: DeviceRegistry, access: HttpAccess) -> None:
        self._registry = registry
        self._access = access

    async def page(self, request: Request) -> Response:
        """List devices that were added at gateways."""
        scope, query = await scope_of(self._access, request), request.query_params
        tenant, gateway = query.get("tenant") or scope.tenant or DEFAULT_TENANT, query.get("gateway") or None
        if tenant_fault(tenant) is not None or not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        if gateway is not None and "\0" in gateway:
            raise RequestRefused(400, "a parameter has a NUL")
        limit, given = limit_of(query), query.get("after", "")
        after = decode_position(given, tuple[_CursorPart, _CursorPart]) if given else None
        rows = await self._registry.local_devices(tenant, gateway, after, limit + 1)
        following = encode_position(rows[limit - 1][:2]) if len(rows) > limit else None
        devices = [local_device_document(row) for row in rows[:limit]]
        return json_response(LocalDevicePage(devices=devices, next=following))
