"""HTTP side of the hub: health, metrics, read-only API and console."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from bridge.version import VERSION
from cloud.hub.audit_http import audit_routes
from cloud.hub.audit_trail import AuditTrail, HubAudit
from cloud.hub.committer import Committer, Fault
from cloud.hub.fleet import FleetState
from cloud.hub.fleet_documents import (
    FleetGateway,
    GatewayCounts,
    GatewayMark,
    HubStatusDocument,
    HubStatusHead,
    LandingFault,
    TenantStatus,
)
from cloud.hub.fleet_view import FleetViews
from cloud.hub.gateways_http import csv_response, read_query, view_routes
from cloud.hub.health import HubHealth
from cloud.hub.idempotent_http import IdempotentRequests
from cloud.hub.json_http import json_response
from cloud.hub.known_query import check_queries
from cloud.hub.limits import HELD_SHOWN_MAX, MARKS_SHOWN_MAX, PAGE_GATEWAYS, PAGE_GATEWAYS_MAX
from cloud.hub.metrics import Metrics
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.registry import Registry
from cloud.hub.scope import Scope, require_fleet, scope_of
from cloud.hub.seen_gateway import SeenGateway
from cloud.lake.faults import RegistryError
from edge.broker.http.access import HttpAccess, is_local
from edge.broker.http.application import application as web_application
from edge.broker.http.application import needing
from edge.broker.http.assets import StaticAssets
from edge.broker.http.live import EVENTS, LiveFeed
from edge.broker.http.log_api import LogTopic, log_routes
from edge.broker.http.openapi import openapi_route
from edge.broker.http.page import ConsolePage
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, Answer, HttpRoute
from edge.health.problems import serving
from edge.output import logs

STREAMS_MAX: Final = 200
"""Pages with live figures at the same time, about 100 kB each at most; further ones ask every 10 s."""
LIVE_INTERVAL_S: Final = 2.0
"""Time between two live figures: half as often as a gateway's, as a hub has more pages open."""


def application(
    fleet: FleetState,
    committer: Committer,
    metrics: Metrics,
    access: HttpAccess,
    health: HubHealth,
    *,
    dev: bool,
    now_us: Callable[[], int],
    clock: Callable[[], float],
    views: FleetViews,
    alerts: Callable[[], Mapping[str, int]],
    audit: HubAudit,
    happened: Answer,
    more: Sequence[HttpRoute] = (),
) -> Starlette:
    """Return the ASGI application.

    Every response is JSON except the page, its files and the metrics. All other paths except the health need the right
    to view, and show data within the user's scope (`cloud.hub.scope`).

    `now_us`: UTC microseconds; `clock`: monotonic seconds; `alerts` returns their number by state; `happened`
    answers with events of the fleet; it and the routes of `more` check rights themselves.
    """
    api = Api(fleet, committer, metrics, health, access, dev, now_us, clock, views, alerts)
    live = api.scoped(api.events)

    async def events(request: Request) -> Response:
        """Stream live figures to a page of the console, which names topics; events of the fleet to others."""
        return await (live if "topics" in request.query_params else happened)(request)

    fleet_wide = needing(functools.partial(require_fleet, access))
    assets = StaticAssets([resources.files("bridge.console"), resources.files("cloud.console").joinpath("pages")])
    page = ConsolePage("Waypost hub", assets, "hub.js", camera=True)
    routes = [
        HttpRoute("/healthz", api.health, methods=PURE),
        HttpRoute("/", page.respond, methods=PURE),
        *assets.routes,
        openapi_route(resources.files("cloud.console")),
        HttpRoute(EVENTS, events, methods=("GET",)),
        HttpRoute("/metrics", fleet_wide(api.prometheus), methods=PURE),
        HttpRoute("/api/v1/status", api.scoped(api.status), methods=PURE),
        HttpRoute("/api/v1/fleet", api.scoped(api.fleet), methods=PURE),
        HttpRoute("/api/v1/gateways", api.scoped(api.gateways), methods=PURE),
        HttpRoute("/api/v1/gateways.csv", api.scoped(api.gateways_file), methods=PURE),
        HttpRoute("/api/v1/gateways/{name:path}", api.scoped(api.gateway), methods=PURE),
        *view_routes(committer, access),
        *audit_routes(audit, access),
        *log_routes(logs.histories(), functools.partial(require_fleet, access)),
        *more,
    ]
    app = web_application(check_queries(routes, resources.files("cloud.console")), access)
    app.add_middleware(AuditTrail, audit=audit, access=access)
    app.add_middleware(IdempotentRequests, committer=committer, access=access, now_us=now_us)
    app.add_middleware(RefuseNul)
    return app


class RefuseNul:
    """Refuses requests with a NUL in path or query.

    No name contains one, and PostgreSQL does not take it in a text: the registry would be reported as failing instead
    of the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            await RequestRefused(400, "names do not contain NUL").response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


Scoped = Callable[[Request, Scope], Awaitable[Response]]
"""Endpoint that gets the scope of the request."""


class Api:
    """Endpoints. Times in responses are milliseconds since 1970, UTC; null for never."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        metrics: Metrics,
        health: HubHealth,
        access: HttpAccess,
        dev: bool,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        views: FleetViews,
        alerts: Callable[[], Mapping[str, int]],
    ) -> None:
        self._fleet = fleet
        self._committer = committer
        self._metrics = metrics
        self._health = health
        self._access = access
        self._dev = dev
        self._now_us = now_us
        self._clock = clock
        self._started_at_us = now_us()
        self._feeds: dict[str | None, LiveFeed] = {}
        """Live figures by tenant; None: of the whole fleet."""
        self._views = views
        self._alerts = alerts

    def scoped(self, answer: Scoped) -> Answer:
        """Wrap an endpoint: refuse users without the right to view, and pass the scope of the others."""

        async def behind(request: Request) -> Response:
            try:
                scope = await scope_of(self._access, request)
            except RequestRefused as refused:
                return refused.response()
            return await answer(request, scope)

        return behind

    async def events(self, request: Request, scope: Scope) -> Response:
        """Stream the status, of the hub or of the tenant's part of it, and the lines of the log."""
        if sum(feed.streams for feed in self._feeds.values()) >= STREAMS_MAX:
            return RequestRefused(503, f"{STREAMS_MAX} pages are open: this one asks less often").response()
        self._feeds = {tenant: feed for tenant, feed in self._feeds.items() if feed.streams}
        feed = self._feeds.get(scope.tenant)
        if feed is None:
            sources = {"status": functools.partial(self._status, scope)}
            more = {"log": LogTopic(logs.histories().lines)} if scope.tenant is None else {}
            feed = LiveFeed(sources, self._access, streams_max=STREAMS_MAX, interval_s=LIVE_INTERVAL_S, more=more)
            self._feeds[scope.tenant] = feed
        return await feed.respond(request)

    async def health(self, request: Request) -> Response:
        """Answer 200 while the hub serves, 503 otherwise.

        Problems (`edge.health.problems.HealthProblem`) are shown to local clients and to users who may view the whole
        fleet, because they name gateways and files.
        """
        problems = self._health.problems()
        ok = serving(problems)
        shown = {"problems": problems} if await self._may_see_problems(request) else {}
        return json_response({"ok": ok, **shown}, 200 if ok else 503)

    async def _may_see_problems(self, request: Request) -> bool:
        if is_local(request):
            return True
        try:
            await require_fleet(self._access, request)
        except RequestRefused:
            return False
        return True

    def _fault(self, fault: Fault) -> LandingFault:
        since_us = self._now_us() - int((self._clock() - fault.since_s) * 1_000_000)
        return {"since": since_us // 1_000, "reason": fault.reason}

    async def prometheus(self, _request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def status(self, _request: Request, scope: Scope) -> Response:
        """Show the status of the hub, or the tenant's part of it."""
        return json_response(self._status(scope))

    def _status(self, scope: Scope) -> HubStatusDocument | TenantStatus:
        head: HubStatusHead = {
            "version": VERSION,
            "dev": self._dev,
            "now": self._now_us() // 1_000,
            "started_at": self._started_at_us // 1_000,
            "tenant": scope.tenant,
        }
        if scope.tenant is not None:
            figures = self._fleet.tenant(scope.tenant)
            return {
                **head,
                "gateways": self._counts(scope.tenant),
                "totals": {"rows": figures.rows},
                "rate": figures.rate.history(self._clock()),
            }
        fleet, committer, log = self._fleet, self._committer, logs.figures()
        return {
            **head,
            "gateways": self._counts(None),
            "totals": asdict(fleet.totals),
            "rate": fleet.rate.history(self._clock()),
            "landing": {
                "failing": committer.failing,
                "fault": self._fault(fault) if (fault := committer.fault) is not None else None,
                "oldest_ms": _milliseconds(committer.oldest_s),
                "held": [
                    {"tenant": session.tenant, "gateway": session.gateway, **self._fault(held)}
                    for session, held in committer.held[:HELD_SHOWN_MAX]
                ],
                "pending_bytes": committer.pending_bytes,
                "pending_messages": committer.pending_rows,
                "latency_ms_p50": _milliseconds(fleet.latency_s(0.5)),
                "latency_ms_p99": _milliseconds(fleet.latency_s(0.99)),
                "latencies_ms": [_milliseconds(one) for one in list(fleet.latencies_s)[-60:]],
            },
            "tables": dict(fleet.versions),
            "loop": {"lag_s": self._health.lag.recent_s, "lag_s_max": self._health.lag.longest_s},
            "log": {"dropped": log.dropped, "repeated": log.repeated, "stuck_s": log.stuck_s},
            "problems": self._health.problems(),
            "alerts": dict(self._alerts()),
        }

    def _counts(self, tenant: str | None) -> GatewayCounts:
        return {"known": self._fleet.count_known(tenant), "connected": self._fleet.count_connected(tenant)}

    async def fleet(self, _request: Request, scope: Scope) -> Response:
        """Show the gateways by state, troubles with one likely cause, and sites."""
        try:
            summary = await self._views.of(scope.tenant).summary()
        except RegistryError as error:
            return RequestRefused(503, str(error)).response()
        return json_response(summary._asdict())

    async def gateways(self, request: Request, scope: Scope) -> Response:
        """Show one page of gateways.

        Query: ``?after=NEXT&limit=N``, and as `read_query` takes it.
        """
        query = request.query_params
        try:
            limit, wanted = limit_of(query, PAGE_GATEWAYS, PAGE_GATEWAYS_MAX), read_query(query, self._now_us())
            page = await self._views.of(scope.tenant).page(wanted, query.get("after", ""), limit)
        except RequestRefused as refused:
            return refused.response()
        except RegistryError as error:
            return RequestRefused(503, str(error)).response()
        rows = [self._summary(one) for one in page.rows]
        return json_response({"gateways": rows, "next": page.next, "total": page.total})

    async def gateways_file(self, request: Request, scope: Scope) -> Response:
        """Return all gateways of a query as CSV."""
        try:
            wanted = read_query(request.query_params, self._now_us())
            return await csv_response(self._views.of(scope.tenant).every(wanted))
        except RequestRefused as refused:
            return refused.response()
        except RegistryError as error:
            return RequestRefused(503, str(error)).response()

    @staticmethod
    def _tenant(scope: Scope) -> str:
        """Return the tenant of a request that names none."""
        return scope.tenant or DEFAULT_TENANT

    async def gateway(self, request: Request, scope: Scope) -> Response:
        """Show one gateway with its marks: how far each address has landed."""
        tenant, name = request.query_params.get("tenant", self._tenant(scope)), request.path_params["name"]
        try:
            gateway = await self._views.of(scope.tenant).one((tenant, name))
            if gateway is None:
                return RequestRefused(404, f"no gateway {name} in tenant {tenant}", code="gateway-not-found").response()
            marks, total = await self._committer.read(functools.partial(_marks, tenant=tenant, name=name))
        except RegistryError as error:
            return RequestRefused(503, str(error)).response()
        rate = gateway.gateway.rate
        more = {"rate": rate.history(self._clock()) if rate is not None else [], "marks": marks, "marks_total": total}
        return json_response({**self._summary(gateway), **more})

    def _summary(self, seen: SeenGateway) -> FleetGateway:
        return _summary(seen, self._now_us(), self._fleet.hub_names)


def _marks(registry: Registry, *, tenant: str, name: str) -> tuple[list[GatewayMark], int]:
    known = registry.commits.marks(tenant, name)
    shown: list[GatewayMark] = [
        {
            "epoch": stream.epoch,
            "address": stream.address,
            "mark": landed.mark,
            "contiguous": landed.contiguous,
            "missing": sum(last - first + 1 for first, last in landed.holes),
        }
        for stream, landed in sorted(known.landed.items())[:MARKS_SHOWN_MAX]
    ]
    return shown, len(known.landed)


def _summary(seen: SeenGateway, now_us: int, hubs: Mapping[str, str]) -> FleetGateway:
    """Return a row of the list. `hubs`: names by writer id. Pages read 50 of them every 5 s, so only a gateway's own
    page has its rates."""
    gateway = seen.gateway
    newest, status = gateway.newest_received_at, gateway.status or {}
    return {
        "tenant": gateway.tenant,
        "name": gateway.name,
        "labels": dict(seen.labels),
        "state": seen.condition.value,
        "why": seen.why or None,
        "next_step": seen.next_step or None,
        "since": seen.since_us // 1_000 or None,
        "room_hours": seen.room_hours,
        "connected": gateway.connected,
        "connected_since": gateway.connected_at // 1_000 if gateway.connected and gateway.connected_at else None,
        "hub": hubs.get(gateway.hub, gateway.hub or None) if gateway.connected else None,
        "remote": gateway.remote if gateway.connected else None,
        "first_seen": gateway.first_seen // 1_000,
        "last_seen": gateway.last_seen // 1_000 or None,
        "landed": gateway.landed,
        "newest_received_at": newest // 1_000 if newest else None,
        "lag_ms": max(0, now_us - newest) // 1_000 if newest else None,
        "waiting_messages": status.get("backlog_messages"),
        "waiting_bytes": status.get("backlog_bytes"),
        "status": None if gateway.status is None else dict(gateway.status),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000, 1)
