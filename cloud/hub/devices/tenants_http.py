"""Tenants of devices over HTTP: the management API v1 of Eclipse Hono's device registry.

``POST   /v1/tenants[/<tenant>]``  add a tenant: a `DeviceTenantDocument`, or no body
``GET    /v1/tenants``             search: ``?pageSize=&pageOffset=&filterJson=&sortJson=``
``GET    /v1/tenants/<tenant>``    one tenant
``PUT    /v1/tenants/<tenant>``    replace its document
``DELETE /v1/tenants/<tenant>``    remove it with its devices

A tenant of devices belongs to a tenant of the hub, and the users of that one manage it. One with the name of a tenant
of the hub is that one's, and exists before it has a document. Other names, as ``DEFAULT_TENANT``, need
``manage:$fleet`` to be added.
"""

from __future__ import annotations

import json
import uuid

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change
from cloud.hub.devices.documents import InvalidDocument, require_tenant_id
from cloud.hub.devices.http import answered
from cloud.hub.devices.limits import TENANT_BYTES_MAX
from cloud.hub.devices.requests import (
    TENANTS,
    ManagedTenant,
    TenantAccess,
    changed_response,
    checking,
    condition_of,
    created_response,
    page_response,
    query_of,
    read_json,
    tag,
)
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.devices.tenants import ReadTenant, read_tenant, tenant_answer
from cloud.hub.json_http import json_response
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.scope import FLEET, Scope
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

NEVER_CHANGED = 0
"""Revision of a tenant of the hub that has no document."""


def device_tenant_routes(registry: DeviceRegistry, tenants: TenantAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _TenantsApi(registry, tenants)
    return [
        HttpRoute(TENANTS, answered(api.add, "device-tenant.create"), methods=("POST",)),
        HttpRoute(TENANTS, answered(api.search), methods=PURE),
        HttpRoute(TENANTS + "/{tenant}", answered(api.add, "device-tenant.create"), methods=("POST",)),
        HttpRoute(TENANTS + "/{tenant}", answered(api.one), methods=PURE),
        HttpRoute(TENANTS + "/{tenant}", answered(api.replace, "device-tenant.change"), methods=("PUT",)),
        HttpRoute(TENANTS + "/{tenant}", answered(api.remove, "device-tenant.remove"), methods=("DELETE",)),
    ]


class _TenantsApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, registry: DeviceRegistry, tenants: TenantAccess) -> None:
        self._registry = registry
        self._tenants = tenants

    async def add(self, request: Request) -> Response:
        """Add a tenant."""
        scope = await self._tenants.scope(request, Operation.MANAGE)
        name = require_tenant_id(request.path_params.get("tenant") or str(uuid.uuid4()))
        note_change(request, subject=name)
        wanted = await _wanted(request)
        owner = _owner(name, wanted.owner)
        _require_own_name(scope, name)
        note_change(request, tenant=owner, after=_shown(wanted))

        def check(revision: int | None) -> None:
            if revision is not None:
                raise RequestRefused(409, f"there is a tenant {name} already", next_step="change it with PUT")

        by = await self._tenants.user(request)
        return created_response(TENANTS, name, await self._registry.put_tenant(name, wanted, owner, by, check))

    async def search(self, request: Request) -> Response:
        """Search for tenants."""
        scope, query = await self._tenants.scope(request), query_of(request)
        if query.gateways is not None:
            raise InvalidDocument("isGateway is for devices")
        found = await self._registry.search_tenants(scope.tenant, query)
        rows = [{"id": row.tenant, **tenant_answer(row)} for row in found.rows]
        return page_response(request, query, rows, found.total)

    async def one(self, request: Request) -> Response:
        """Show a tenant."""
        tenant = await self._tenants.managed(request, Operation.VIEW)
        answer = json_response(tenant_answer(tenant.row) if tenant.row is not None else json.loads(tenant.document))
        answer.headers["ETag"] = tag(_revision(tenant))
        return answer

    async def replace(self, request: Request) -> Response:
        """Replace the document of a tenant."""
        tenant, condition = await self._tenants.managed(request, Operation.MANAGE), condition_of(request)
        note_change(request, subject=tenant.id, tenant=tenant.owner)
        wanted = await _wanted(request)
        if wanted.owner not in (None, tenant.owner):
            raise RequestRefused(409, f"tenant {tenant.id} belongs to tenant {tenant.owner} of the hub, for ever")
        before = json.loads(tenant.document)
        note_change(request, before=_small(before), after=_shown(wanted))
        revision = await self._registry.put_tenant(
            tenant.id,
            wanted,
            tenant.owner,
            tenant.by,
            lambda there: condition.check(tag(there if there is not None else NEVER_CHANGED)),
        )
        return changed_response(revision)

    async def remove(self, request: Request) -> Response:
        """Remove a tenant with its devices."""
        tenant, check = await self._tenants.managed(request, Operation.MANAGE), checking(request)
        _require_own_name(await self._tenants.scope(request, Operation.MANAGE), tenant.id)
        note_change(request, subject=tenant.id, tenant=tenant.owner)
        if tenant.row is not None:
            note_change(request, before={"devices": tenant.row.devices})
        await self._registry.remove_tenant(tenant.id, check)
        return changed_response()


async def _wanted(request: Request) -> ReadTenant:
    return read_tenant(await read_json(request, TENANT_BYTES_MAX, "the tenant"))


def _require_own_name(scope: Scope, name: str) -> None:
    """Raise `RequestRefused` unless the user may add and remove a tenant of this name."""
    if scope.tenant not in (None, name):
        raise RequestRefused(
            403,
            f"adding and removing a tenant of devices other than {scope.tenant} requires the right manage:{FLEET}",
            next_step=f"ask an operator with manage:{FLEET}",
        )


def _owner(name: str, wanted: str | None) -> str:
    """Return the tenant of the hub that a new tenant belongs to. Raises `InvalidDocument`."""
    own = name if tenant_fault(name) is None else None
    if own is not None and wanted not in (None, own):
        raise InvalidDocument(f"a tenant of devices with the name of a tenant of the hub is that one's: {own}")
    return own or wanted or DEFAULT_TENANT


def _revision(tenant: ManagedTenant) -> int:
    return tenant.row.revision if tenant.row is not None else NEVER_CHANGED


def _shown(wanted: ReadTenant) -> dict[str, object]:
    return _small(json.loads(wanted.text))


def _small(document: dict[str, object]) -> dict[str, object]:
    """Return what the audit keeps of a document: certificates are named by their subjects."""
    found = document.get("trusted-ca")
    if not isinstance(found, list):
        return document
    return {**document, "trusted-ca": [each.get("subject-dn") for each in found]}
