"""Tenants of a hub over HTTP, with limits and use.

``GET /api/v1/tenants``                 the user's own tenant, or with the right on ``$fleet`` all of
                                        them: ``?q=&after=&limit=``
``GET /api/v1/tenants/<tenant>/usage``  messages and bytes of each day that landed, the latest first: ``?days=31``

A tenant exists from its first user or gateway on, or from its quota in the hub's configuration. What its gateways have
accepted each day is in the lake: ``GET /api/v1/completeness``.
"""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.acceptor import Acceptor
from cloud.hub.fleet import FleetState
from cloud.hub.json_http import answering, json_response
from cloud.hub.limits import USAGE_DAYS_KEPT
from cloud.hub.peers import DEFAULT_TENANT, tenants_of
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.usage import DayAmount, TenantAmount
from cloud.hub.scope import scope_of
from cloud.hub.service import HubService
from cloud.hub.spaces import Spaces
from cloud.hub.tenants import Tenants
from cloud.hub.usage import DAY_US
from cloud.lake.faults import RegistryError
from edge.broker.http.access import HttpAccess
from edge.broker.http.queries import limit_of, number_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

TENANTS: Final = "/api/v1/tenants"
MONTH_DAYS: Final = 31
"""Days of a sum, with today."""
UsageSums = Mapping[str, TenantAmount]
ReadUsage = Callable[[Callable[[Registry], Any]], Awaitable[Any]]
"""Runs a query on the registry's thread; raises `RegistryError`."""
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


class LandedAmount(msgspec.Struct, kw_only=True):
    """Messages that landed, and their bytes."""

    messages: int
    bytes: int
    """Without compression, with their properties."""


class UsageDay(msgspec.Struct, kw_only=True):
    """Messages of one day that landed, and their bytes."""

    day: str
    """UTC, as ``2026-11-29``."""
    messages: int
    bytes: int
    """Without compression, with their properties."""


class UsageDocument(msgspec.Struct, kw_only=True):
    """Usage of one tenant."""

    tenant: str
    days: list[UsageDay]
    """The latest first; days without a message are left out. Today's is at most 30 s behind."""
    total: LandedAmount
    """Sum of these days."""
    kept_days: int
    """Days that are kept."""


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
    bytes: int
    """Their bytes, without compression."""
    today: LandedAmount | None
    """Landed today (UTC), at all hubs; null while the registry cannot be read."""
    month: LandedAmount | None
    """Landed today and in the 30 days before."""
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


class UsageView:
    """Reads the usage of tenants."""

    def __init__(self, read: ReadUsage, now_us: Callable[[], int]) -> None:
        """`now_us` returns UTC microseconds."""
        self._read = read
        self._now_us = now_us

    async def days(self, tenant: str, count: int) -> list[DayAmount]:
        """Return the last days of a tenant. Raises `RegistryError`."""
        since = self._now_us() // DAY_US - count + 1
        found = await self._read(lambda registry: registry.usage.days(tenant, since))
        return list(found)

    async def sums(self, tenants: Collection[str], count: int) -> dict[str, TenantAmount] | None:
        """Return the sums of the last days; None while the registry cannot be read."""
        since = self._now_us() // DAY_US - count + 1
        try:
            return dict(await self._read(lambda registry: registry.usage.sums(tenants, since)))
        except RegistryError:
            return None


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
        has_ended: Callable[[str], bool] = lambda _tenant: False,
    ) -> None:
        """`clock`: monotonic seconds. `has_ended` returns whether nothing of a removed tenant is left."""
        self._fleet = fleet
        self._quotas = quotas
        self._acceptor = acceptor
        self._spaces = spaces
        self._service = service
        self._clock = clock
        self._has_ended = has_ended

    def names(self) -> set[str]:
        """Return the tenants with gateways, users, a space or limits of their own."""
        users = tenants_of(self._acceptor.gate.users)
        spaces = (space.tenant for space in self._spaces)
        found = {*self._fleet.counted.known, *self._fleet.tenants, *users, *spaces, *self._quotas.named}
        return {name for name in found if not self._has_ended(name)} or {DEFAULT_TENANT}

    def count_users(self) -> Counter[str]:
        """Return the number of users by tenant."""
        return Counter(name.partition("@")[2] for name in self._acceptor.gate.users)

    def document(
        self, tenant: str, users: Mapping[str, int], today: UsageSums | None, month: UsageSums | None
    ) -> TenantDocument:
        """Return a tenant. `users`: their number by tenant; `today`, `month`: their usage."""
        figures = self._fleet.tenant(tenant)
        return TenantDocument(
            tenant=tenant,
            gateways=self._fleet.count_known(tenant),
            connected=self._fleet.count_connected(tenant),
            users=users.get(tenant, 0),
            messages=figures.rows,
            bytes=figures.bytes,
            today=_amount(today, tenant),
            month=_amount(month, tenant),
            rate=figures.rate.history(self._clock()),
            own_quota=tenant in self._quotas.named,
            quota=self._quota(tenant),
            trouble=self._spaces.troubles.get(tenant),
        )

    def _quota(self, tenant: str) -> list[QuotaUse]:
        quota, space = self._quotas.of(tenant), self._spaces.get(tenant)
        connections, applications = self._acceptor.count_connections(tenant)
        found: tuple[tuple[str, int | None, int | None], ...] = (
            ("gateways", self._fleet.count_known(tenant), quota.gateways),
            ("connections", connections, quota.connections),
            ("applications", applications, quota.applications),
            ("waitingBytes", self._service.waiting_bytes(tenant), quota.waiting_bytes),
            ("bytesPerSecond", None, quota.bytes_per_second),
            ("storedBytes", space.stored_bytes if space is not None else 0, quota.stored_bytes),
            ("commands", None, quota.commands),
            ("devices", None, quota.devices),
        )
        reached = self._quotas.reached
        return [QuotaUse(limit=name, used=used, most=most, reached=reached[tenant, name]) for name, used, most in found]


def _amount(sums: UsageSums | None, tenant: str) -> LandedAmount | None:
    if sums is None:
        return None
    found = sums.get(tenant, TenantAmount(tenant, 0, 0))
    return LandedAmount(messages=found.messages, bytes=found.bytes)


def tenant_routes(view: TenantsView, usage: UsageView, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""

    async def page(request: Request) -> Response:
        scope, query, limit = await scope_of(access, request), request.query_params, limit_of(request.query_params)
        text = query.get("q", "")
        names = sorted(name for name in view.names() if text in name and scope.covers(name))
        start = bisect_right(names, query["after"]) if query.get("after") else 0
        shown, more = names[start : start + limit], len(names) > start + limit
        users, today, month = view.count_users(), await usage.sums(shown, 1), await usage.sums(shown, MONTH_DAYS)
        rows = [view.document(name, users, today, month) for name in shown]
        return json_response(TenantPage(tenants=rows, next=shown[-1] if more else None, total=len(names)))

    async def days(request: Request) -> Response:
        scope, tenant = await scope_of(access, request), request.path_params["tenant"]
        count = number_of(request.query_params, "days") or MONTH_DAYS
        if not 1 <= count <= USAGE_DAYS_KEPT:
            raise RequestRefused(400, f"days must be 1 to {USAGE_DAYS_KEPT}")
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        found = await usage.days(tenant, count)
        total = LandedAmount(messages=sum(each.messages for each in found), bytes=sum(each.bytes for each in found))
        rows = [UsageDay(day=_day(each.day), messages=each.messages, bytes=each.bytes) for each in found]
        return json_response(UsageDocument(tenant=tenant, days=rows, total=total, kept_days=USAGE_DAYS_KEPT))

    return [
        HttpRoute(TENANTS, answered(page), methods=PURE),
        HttpRoute(TENANTS + "/{tenant}/usage", answered(days), methods=PURE),
    ]


def _day(number: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=number)).isoformat()
