"""Devices and credentials over HTTP: the management API v1 of Eclipse Hono's device registry.

``POST   /v1/devices/<tenant>``                add a device with a generated id
``POST   /v1/devices/<tenant>/<device>``       add a device: a `DeviceRegistration`, or no body
``GET    /v1/devices/<tenant>``                search: ``?pageSize=&pageOffset=&filterJson=&sortJson=&isGateway=``
``GET    /v1/devices/<tenant>/<device>``       one device
``PUT    /v1/devices/<tenant>/<device>``       replace its registration
``DELETE /v1/devices/<tenant>[/<device>]``     remove it, or all of a tenant, with the credentials
``GET    /v1/credentials/<tenant>/<device>``   its credentials, without secrets
``PUT    /v1/credentials/<tenant>/<device>``   replace them; a secret with the id of one keeps that one

Reading needs the right to view the tenant, changing the right to manage it. `ETag` and `If-Match` are Hono's resource
versions.
"""

from __future__ import annotations

import json
import uuid

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change
from cloud.hub.devices.credentials import CredentialsFull, credentials_answer, read_credentials
from cloud.hub.devices.documents import (
    InvalidDocument,
    device_answer,
    read_registration,
    require_device_id,
)
from cloud.hub.devices.limits import CREDENTIALS_BYTES_MAX, DEVICE_BYTES_MAX
from cloud.hub.devices.requests import (
    CREDENTIALS,
    DEVICES,
    ManagedTenant,
    TenantAccess,
    changed_response,
    checking,
    created_response,
    page_response,
    query_of,
    read_json,
    tag,
)
from cloud.hub.devices.service import DeviceRegistry, DevicesBusy
from cloud.hub.json_http import answering, json_response
from cloud.hub.registry.device_search import UnsearchableField
from cloud.hub.registry.device_targets import SelectorsFull
from cloud.hub.registry.device_tenants import AnchorTaken, TenantsOfOwnerFull, UnknownDeviceTenant
from cloud.hub.registry.devices import (
    CredentialsTaken,
    DeviceExists,
    DeviceRow,
    DevicesFull,
    NewDeviceRow,
    UnknownDevice,
)
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation
from edge.output.http_errors import OTHER

answered = answering(
    {
        InvalidDocument: 400,
        UnsearchableField: 400,
        DevicesFull: lambda why: _full(str(why)),
        CredentialsFull: lambda why: _full(str(why)),
        SelectorsFull: 403,
        TenantsOfOwnerFull: lambda why: _full(str(why)),
        UnknownDevice: lambda why: _not_found("device", str(why)),
        UnknownDeviceTenant: lambda why: _not_found("tenant", str(why)),
        DeviceExists: lambda why: RequestRefused(
            409, f"there is a device {why} already", next_step="change it with PUT, or choose another id"
        ).response(),
        CredentialsTaken: 409,
        AnchorTaken: 409,
        DevicesBusy: 503,
    }
)


def _full(why: str) -> Response:
    """Return the answer at a limit: 403, as of Hono."""
    return RequestRefused(403, why, code=OTHER, next_step="remove some, or raise the limit").response()


def _not_found(what: str, name: str) -> Response:
    return RequestRefused(404, f"no {what} {name}", next_step=f"look which there are: GET /v1/{what}s").response()


def device_routes(registry: DeviceRegistry, tenants: TenantAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _DevicesApi(registry, tenants)
    return [
        HttpRoute(DEVICES + "/{tenant}", answered(api.add, "device.create"), methods=("POST",)),
        HttpRoute(DEVICES + "/{tenant}", answered(api.search), methods=PURE),
        HttpRoute(DEVICES + "/{tenant}", answered(api.remove_all, "device.remove"), methods=("DELETE",)),
        HttpRoute(DEVICES + "/{tenant}/{device}", answered(api.add, "device.create"), methods=("POST",)),
        HttpRoute(DEVICES + "/{tenant}/{device}", answered(api.one), methods=PURE),
        HttpRoute(DEVICES + "/{tenant}/{device}", answered(api.replace, "device.change"), methods=("PUT",)),
        HttpRoute(DEVICES + "/{tenant}/{device}", answered(api.remove, "device.remove"), methods=("DELETE",)),
        HttpRoute(CREDENTIALS + "/{tenant}/{device}", answered(api.credentials), methods=PURE),
        HttpRoute(
            CREDENTIALS + "/{tenant}/{device}",
            answered(api.set_credentials, "device.credentials"),
            methods=("PUT",),
        ),
    ]


class _DevicesApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, registry: DeviceRegistry, tenants: TenantAccess) -> None:
        self._registry = registry
        self._tenants = tenants

    async def add(self, request: Request) -> Response:
        """Add a device."""
        tenant = await self._tenants.managed(request, Operation.MANAGE)
        name = require_device_id(request.path_params.get("device") or str(uuid.uuid4()))
        new = await self._wanted(request, tenant, name)
        revision = await self._registry.add(new, tenant.owner, implicit=tenant.row is None)
        return created_response(f"{DEVICES}/{tenant.id}", name, revision)

    async def search(self, request: Request) -> Response:
        """Search for devices."""
        tenant, query = await self._tenants.managed(request, Operation.VIEW), query_of(request)
        found = await self._registry.search(tenant.id, query)
        rows = [{"id": row.device, **device_answer(row)} for row in found.rows]
        return page_response(request, query, rows, found.total)

    async def one(self, request: Request) -> Response:
        """Show a device."""
        row = await self._row(request, await self._tenants.managed(request, Operation.VIEW))
        answer = json_response(device_answer(row))
        answer.headers["ETag"] = tag(row.revision)
        return answer

    async def replace(self, request: Request) -> Response:
        """Replace the registration of a device."""
        tenant, check = await self._tenants.managed(request, Operation.MANAGE), checking(request)
        before = await self._row(request, tenant)
        new = await self._wanted(request, tenant, before.device)
        note_change(request, before=json.loads(before.document))
        return changed_response(await self._registry.replace(new, check))

    async def remove(self, request: Request) -> Response:
        """Remove a device."""
        tenant, check = await self._tenants.managed(request, Operation.MANAGE), checking(request)
        name = _device(request)
        note_change(request, subject=f"{tenant.id}/{name}", tenant=tenant.owner)
        await self._registry.remove(tenant.id, name, check)
        return changed_response()

    async def remove_all(self, request: Request) -> Response:
        """Remove all devices of a tenant."""
        tenant = await self._tenants.managed(request, Operation.MANAGE)
        note_change(request, subject=tenant.id, tenant=tenant.owner)
        count = await self._registry.remove_devices(tenant.id) if tenant.row is not None else 0
        note_change(request, after={"removed": count})
        return changed_response()

    async def credentials(self, request: Request) -> Response:
        """Show the credentials of a device."""
        tenant = await self._tenants.managed(request, Operation.VIEW)
        found = await self._registry.credentials(tenant.id, _device(request))
        answer = json_response(credentials_answer(found.rows))
        answer.headers["ETag"] = tag(found.revision)
        return answer

    async def set_credentials(self, request: Request) -> Response:
        """Replace the credentials of a device."""
        tenant, check = await self._tenants.managed(request, Operation.MANAGE), checking(request)
        name = _device(request)
        note_change(request, subject=f"{tenant.id}/{name}", tenant=tenant.owner)
        wanted = read_credentials(await read_json(request, CREDENTIALS_BYTES_MAX, "the credentials"))
        note_change(request, after=wanted.shown)
        return changed_response(await self._registry.set_credentials(tenant.id, name, wanted, check))

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _wanted(self, request: Request, tenant: ManagedTenant, name: str) -> NewDeviceRow:
        """Return the device that a request describes."""
        note_change(request, subject=f"{tenant.id}/{name}", tenant=tenant.owner)
        document, links = read_registration(await read_json(request, DEVICE_BYTES_MAX, "the registration"))
        note_change(request, after=json.loads(document))
        return NewDeviceRow(tenant.id, name, document, links, self._registry.now_us(), tenant.by)

    async def _row(self, request: Request, tenant: ManagedTenant) -> DeviceRow:
        return await self._registry.device(tenant.id, _device(request))


def _device(request: Request) -> str:
    """Return the device in the path. Raises `InvalidDocument`."""
    return require_device_id(request.path_params["device"])
