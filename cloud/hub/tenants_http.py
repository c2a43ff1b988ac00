"""Tenants of a hub over HTTP, with limits and use.

``GET /api/v1/tenants``  the user's own tenant, or with the right on ``$fleet`` all: ``?q=&after=&limit=``

A tenant exists from its first user or gateway on, or from its quota in the hub's configuration. Messages of each day
are in the lake: ``GET /api/v1/completeness``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.acceptor import Acceptor
from cloud.hub.fleet import FleetState
from cloud.hub.json_http import answering, json_response
from cloud.hub.peers import DEFAULT_TENANT, tenants_of
from cloud.hub.scope import scope_of
from cloud.hub.service import HubService
from cloud.hub.spaces import Spaces
from cloud.hub.tenants import Tenants
from edge.broker.http.access import HttpAccess
from edge.broker.http.queries import limit_of
from edge.broker.http.route import PURE, HttpRoute

TENANTS: Final = "/api/v1/tenants"
answered: Final = answering({})


class QuotaUse(msgspec.Struct, kw_only=True):
    """Use of one limit."""

    limit: str
    """Name of the limit in the hub's configuration, as ``storedBytes``."""
    used: int | None
    """Use now; null where the hub counts it only at the limit."""
    most: int | None
    """Largest use allowed; null without a limit."""
    reached: int
    """Refusals at the limit since the hub started."""


class TenantDocument(msgspec.Struct, kw_only=True):
    """Tenant with its use."""

    tenant: str
    gateways: int
    """Gateways known."""
    connected: int
    """Gateways connected."""
    users: int
    messages: int
    """Messages landed since the hub started."""
    rate: list[int]
    """Messages landed in each of the last 60 seconds."""
    own_quota: bool
    """True if the hub's configuration has limits for this tenant alone."""
    quota: list[QuotaUse]
    trouble: str | None
    """Reason why its applications cannot connect; null if they can."""


class TenantPage(msgspec.Struct, kw_only=True):
    """Page of tenants, by name."""

    tenants: list[TenantDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int


class TenantsView:
    """Makes the documents of tenants from what the parts of the hub know."""

    def __init__(
        self,
        fleet: FleetState,
        quotas: Tenants,
        acceptor: Acceptor,
        spaces: Spaces,
        service: HubService,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: monotonic seconds."""
        self._fleet = fleet
        self._quotas = quotas
        self._acceptor = acceptor
        self._spaces = spaces
        self._service = service
        self._clock = clock

    def names(self) -> set[str]:
        """Return the tenants with gateways, users, a space or limits of their own."""
        users = tenants_of(self._acceptor.gate.users)
        spaces = (space.tenant for space in self._spaces)
        return {*self._fleet.tenants, *users, *spaces, *self._quotas.named} or {DEFAULT_TENANT}

    def count_users(self) -> Counter[str]:
        """Return the number of users by tenant."""
        return Counter(name.partition("@")[2] for name in self._acceptor.gate.users)

    def document(self, tenant: str, users: Mapping[str, int]) -> TenantDocument:
        """Return a tenant. `users`: their number by tenant."""
        figures = self._fleet.tenant(tenant)
        return TenantDocument(
            tenant=tenant,
            gateways=figures.known,
            connected=figures.connected,
            users=users.get(tenant, 0),
            messages=figures.rows,
            rate=figures.rate.history(self._clock()),
            own_quota=tenant in self._quotas.named,
            quota=self._quota(tenant),
            trouble=self._spaces.troubles.get(tenant),
        )

    def _quota(self, tenant: str) -> list[QuotaUse]:
        quota, space = self._quotas.of(tenant), self._spaces.get(tenant)
        connections, applications = self._acceptor.count_connections(tenant)
        found: tuple[tuple[str, int | None, int | None], ...] = (
            ("gateways", self._fleet.tenant(tenant).known, quota.gateways),
            ("connections", connections, quota.connections),
            ("applications", applications, quota.applications),
            ("waitingBytes", self._service.waiting_bytes(tenant), quota.waiting_bytes),
            ("bytesPerSecond", None, quota.bytes_per_second),
            ("storedBytes", space.stored_bytes if space is not None else 0, quota.stored_bytes),
            ("commands", None, quota.commands),
        )
        reached = self._quotas.reached
        return [QuotaUse(limit=name, used=used, most=most, reached=reached[tenant, name]) for name, used, most in found]


def tenant_routes(view: TenantsView, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""

    async def page(request: Request) -> Response:
        scope, query, limit = await scope_of(access, request), request.query_params, limit_of(request.query_params)
        text = query.get("q", "")
        names = sorted(name for name in view.names() if text in name and scope.covers(name))
        start = bisect_right(names, query["after"]) if query.get("after") else 0
        shown, more = names[start : start + limit], len(names) > start + limit
        users = view.count_users()
        rows = [view.document(name, users) for name in shown]
        return json_response(TenantPage(tenants=rows, next=shown[-1] if more else None, total=len(names)))

    return [HttpRoute(TENANTS, answered(page), methods=PURE)]
