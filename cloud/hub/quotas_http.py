"""Quotas of tenants over HTTP.

``GET    /api/v1/tenants/<tenant>/quota``  limits in force, where they come from, and an `ETag`
``PUT    /api/v1/tenants/<tenant>/quota``  set limits at all hubs of the registry, also for a new tenant
``DELETE /api/v1/tenants/<tenant>/quota``  go back to those of the hub's configuration

A set quota replaces that of the configuration as a whole. Changes need the right to manage on ``$fleet``, and are in
force when they are answered, at other hubs within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change
from cloud.hub.json_http import answering, json_response
from cloud.hub.peers import tenant_fault
from cloud.hub.registry.tenant_quotas import TooManyQuotas
from cloud.hub.scope import FLEET, scope_of
from cloud.hub.shared_quotas import SharedQuotas
from cloud.hub.tenants import Quota, Tenants, quota_fault
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

QUOTA: Final = "/api/v1/tenants/{tenant}/quota"
QUOTA_BYTES_MAX: Final = 4_096
"""Largest request: eight numbers with their names."""
answered: Final = answering({TooManyQuotas: 409})


class QuotaLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Limits of a tenant; one that is left out has its default."""

    connections: int | None = None
    """Connections of gateways and applications together."""
    applications: int | None = None
    """Connections of applications."""
    gateways: int | None = None
    """Gateways that are not forgotten."""
    waitingBytes: int | None = None  # noqa: N815 - as in the configuration
    """Bytes that gateways have sent and that have not landed."""
    bytesPerSecond: int | None = None  # noqa: N815
    """Bytes a second from gateways; none: no limit."""
    storedBytes: int | None = None  # noqa: N815
    """Bytes that applications keep in the address space."""
    commands: int | None = None
    """Open commands."""
    devices: int | None = None
    """Devices in each of its tenants of the device registry."""


class TenantQuotaDocument(msgspec.Struct, kw_only=True):
    """Quota of a tenant."""

    tenant: str
    source: str
    """``operator``: set over HTTP or by `waypost tenant quota`; ``configuration``: of the hub; ``default``."""
    limits: QuotaLimits
    etag: str
    """State of what an operator has set, for `If-Match`."""


def quota_routes(tenants: Tenants, shared: SharedQuotas, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _QuotaApi(tenants, shared, access)
    return [
        HttpRoute(QUOTA, answered(api.show), methods=PURE),
        HttpRoute(QUOTA, answered(api.put, "tenant.quota"), methods=("PUT",)),
        HttpRoute(QUOTA, answered(api.delete, "tenant.quota"), methods=("DELETE",)),
    ]


class _QuotaApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, tenants: Tenants, shared: SharedQuotas, access: HttpAccess) -> None:
        self._tenants = tenants
        self._shared = shared
        self._access = access

    async def show(self, request: Request) -> Response:
        scope, tenant = await scope_of(self._access, request), request.path_params["tenant"]
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        return self._answer(tenant)

    async def put(self, request: Request) -> Response:
        tenant = await self._changeable(request)
        content = await read_body(request, QUOTA_BYTES_MAX, "a quota")
        return await self._change(request, tenant, _quota_of(content))

    async def delete(self, request: Request) -> Response:
        return await self._change(request, await self._changeable(request), None)

    async def _change(self, request: Request, tenant: str, quota: Quota | None) -> Response:
        condition = precondition_of(request)

        def check(before: Quota | None) -> None:
            condition.check(_tag(before))

        before = await self._shared.change(tenant, quota, check)
        note_change(request, before=before and _limits(before), after=quota and _limits(quota))
        return self._answer(tenant)

    async def _changeable(self, request: Request) -> str:
        """Return the tenant of a request that may change its quota. Raises `RequestRefused`."""
        tenant: str = request.path_params["tenant"]
        if (await scope_of(self._access, request, Operation.MANAGE)).tenant is not None:
            raise RequestRefused(
                403,
                f"a tenant does not set its own quota, which requires the right manage:{FLEET}",
                next_step=f"ask an operator with manage:{FLEET}",
            )
        if fault := tenant_fault(tenant):
            raise RequestRefused(400, fault)
        note_change(request, subject=tenant, tenant=tenant)
        return tenant

    def _answer(self, tenant: str) -> Response:
        document = TenantQuotaDocument(
            tenant=tenant,
            source=self._tenants.source_of(tenant),
            limits=_limits(self._tenants.of(tenant)),
            etag=_tag(self._tenants.shared(tenant)),
        )
        answer = json_response(document)
        answer.headers["ETag"] = document.etag
        return answer


def convert_limits(limits: Mapping[str, int | None]) -> Quota:
    """Return the quota with these limits; None: the default. Raises ValueError."""
    named = {name: value for name, value in limits.items() if value is not None}
    try:
        quota = msgspec.convert(named, type=Quota)
    except msgspec.ValidationError as error:
        raise ValueError(f"the quota is invalid: {error}") from None
    if fault := quota_fault(quota):
        raise ValueError(fault)
    return quota


def limits_of(quota: Quota) -> dict[str, int | None]:
    """Return the limits of a quota by name."""
    return msgspec.structs.asdict(_limits(quota))


def _quota_of(content: bytes) -> Quota:
    """Read a quota from a request. Raises `RequestRefused`."""
    try:
        given = msgspec.json.decode(content, type=QuotaLimits)
        return convert_limits(msgspec.structs.asdict(given))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(400, f"the quota is invalid: {error}") from None
    except ValueError as error:
        raise RequestRefused(400, str(error)) from None


def _limits(quota: Quota) -> QuotaLimits:
    return QuotaLimits(
        connections=quota.connections,
        applications=quota.applications,
        gateways=quota.gateways,
        waitingBytes=quota.waiting_bytes,
        bytesPerSecond=quota.bytes_per_second,
        storedBytes=quota.stored_bytes,
        commands=quota.commands,
        devices=quota.devices,
    )


def _tag(quota: Quota | None) -> str:
    """Return the entity tag of what an operator has set: that of nothing, too, so that a first one can be checked."""
    return tag_of(None if quota is None else _limits(quota))
