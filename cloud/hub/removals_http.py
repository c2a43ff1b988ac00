"""Removal of tenants over HTTP.

``DELETE /api/v1/tenants/<tenant>``          remove a tenant in which nothing is left; with ``?force=true`` everything
                                             of it too. The answer is the begin: it goes on at the hubs
``GET    /api/v1/tenants/<tenant>/removal``  how far it is, and what is in the tenant, by kind

Both need the right on ``$fleet``; a change needs that to manage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change, note_recorded
from cloud.hub.json_http import answering, json_response
from cloud.hub.peers import tenant_fault, tenant_of_user
from cloud.hub.registry.tenant_removal import RemovalRefusal, TenantNotRemoved, TenantRemoval, removal_line
from cloud.hub.removals import HubTenantRemovals
from cloud.hub.scope import FLEET, require_fleet, scope_of
from edge.broker.http.access import HttpAccess, remote_host
from edge.broker.http.queries import choice_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation
from edge.output.times import moment_us

TENANT: Final = "/api/v1/tenants/{tenant}"
_STEPS: Final = {
    RemovalRefusal.DEFAULT: "the default tenant stays as long as the hub",
    RemovalRefusal.UNKNOWN: "list the tenants: waypost tenant list",
    RemovalRefusal.IN_USE: (
        "remove these first, or all of it with force (waypost tenant remove --force); users with rights on $fleet are "
        "removed by hand (waypost hub user remove)"
    ),
    RemovalRefusal.OLDER_HUB: "update it, then try again",
}


class TenantRemovalDocument(msgspec.Struct, kw_only=True):
    """Removal of a tenant."""

    tenant: str
    state: str
    """``none``, ``removing`` or ``removed``."""
    forced: bool
    """True: everything in it is removed too."""
    begun_at: str | None
    begun_by: str
    ended_at: str | None
    contents: dict[str, int]
    """Number of things that are in it now, by kind."""
    why: str | None
    """Reason why the removal does not go on at this hub; null if it does."""


def _refused(error: TenantNotRemoved) -> Response:
    status = 404 if error.why is RemovalRefusal.UNKNOWN else 409
    refused = RequestRefused(status, str(error), code=error.why.value, next_step=_STEPS[error.why])
    return refused.response(contents=error.contents)


answered: Final = answering({TenantNotRemoved: _refused})


def removal_routes(removals: HubTenantRemovals, access: HttpAccess, now_us: Callable[[], int]) -> list[HttpRoute]:
    """Return the routes of this module. `now_us`: UTC microseconds."""
    api = _RemovalApi(removals, access, now_us)
    return [
        HttpRoute(TENANT + "/removal", answered(api.show), methods=PURE),
        HttpRoute(TENANT, answered(api.remove, "tenant.remove"), methods=("DELETE",)),
    ]


class _RemovalApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, removals: HubTenantRemovals, access: HttpAccess, now_us: Callable[[], int]) -> None:
        self._removals = removals
        self._access = access
        self._now_us = now_us

    async def show(self, request: Request) -> Response:
        await require_fleet(self._access, request)
        return json_response(await self._document(_tenant_of(request)))

    async def remove(self, request: Request) -> Response:
        if (await scope_of(self._access, request, Operation.MANAGE)).tenant is not None:
            raise RequestRefused(
                403,
                f"a tenant is removed by the operators of the hub, which requires the right manage:{FLEET}",
                next_step=f"ask an operator with manage:{FLEET}",
            )
        tenant = _tenant_of(request)
        forced = choice_of(request.query_params, "force", ("false", "true")) == "true"
        async with self._access.admitted(request) as (grant, _):
            by = grant.user if grant is not None else ""
        _, contents = await self._removals.show(tenant)
        note_change(request, subject=tenant, tenant=tenant, before=contents, after={"forced": forced})
        if tenant_of_user(by) == tenant:
            what = f"you are a user of tenant {tenant}, and would be refused after its removal"
            raise TenantNotRemoved(RemovalRefusal.IN_USE, what, contents)
        line = removal_line(tenant, by, remote_host(request), self._now_us(), contents, forced=forced)
        begun = await self._removals.begin(tenant, line, forced=forced)
        if (begun.begun_at, begun.begun_by) == (line.at, by):
            note_recorded(request)
        return json_response(_document_of(tenant, begun, contents, None), 202)

    async def _document(self, tenant: str) -> TenantRemovalDocument:
        found, contents = await self._removals.show(tenant)
        return _document_of(tenant, found, contents, self._removals.trouble)


def _document_of(
    tenant: str, found: TenantRemoval | None, contents: dict[str, int], why: str | None
) -> TenantRemovalDocument:
    running = found is not None and found.ended_at is None
    return TenantRemovalDocument(
        tenant=tenant,
        state="none" if found is None else "removing" if running else "removed",
        forced=found is not None and found.forced,
        begun_at=None if found is None else moment_us(found.begun_at),
        begun_by="" if found is None else found.begun_by,
        ended_at=None if found is None else moment_us(found.ended_at),
        contents=contents,
        why=why if running else None,
    )


def _tenant_of(request: Request) -> str:
    """Return the tenant in the path. Raises `RequestRefused`."""
    tenant: str = request.path_params["tenant"]
    if fault := tenant_fault(tenant):
        raise RequestRefused(400, fault)
    return tenant
