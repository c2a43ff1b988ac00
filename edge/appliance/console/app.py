"""Routes of the console.

===============================  ==============  ==================================================================
``GET /healthz``                 anyone          200 while it serves, 503 otherwise; with ``view`` also the problems
``GET /``, ``GET /ui/…``         anyone          the page and its files, which have no data
``GET /api/v1/status``           view            the status, `status.GatewayStatus`
``GET /api/v1/events``           view            live figures as Server-Sent Events: ``?topics=status,log``
``GET /api/v1/series``           view            figures over time, `series.SeriesPoints`: ``?span=15m|24h|7d``
``GET /metrics``                 view            metrics for Prometheus
``POST /api/v1/uplink/pause``    manage          close the uplink until ``/resume``
===============================  ==============  ==================================================================

The second column is the required right (`Operation`) on the whole space. Only users get 404 for an unknown path. On a
gateway without authentication everyone may view, and clients on this machine may manage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from edge.appliance.console.series import SPANS, StatusSeries
from edge.appliance.console.snapshot import StatusCache
from edge.appliance.console.status import StatusSource, UplinkControl
from edge.broker.http.access import HttpAccess, is_local
from edge.broker.http.application import application, needing
from edge.broker.http.assets import StaticAssets
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.live import EVENTS, LiveFeed
from edge.broker.http.log_api import LogTopic, log_routes
from edge.broker.http.openapi import openapi_route
from edge.broker.http.page import ConsolePage
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.output.log_history import LogHistories

STREAMS_MAX: Final = 8
"""Pages with live figures at the same time; further ones ask every 10 s."""
PAGED: Final = frozenset(("addresses", "addresses_left_out", "flows"))
"""Parts of the status that pages ask for separately, as they grow with the number of names."""


def make_app(
    source: StatusSource,
    series: StatusSeries,
    access: HttpAccess,
    uplink_control: UplinkControl | None = None,
    more: Sequence[HttpRoute] = (),
    histories: LogHistories | None = None,
) -> ASGIApp:
    """Make the console over a source of status and a series, which the caller keeps sampling.

    Without `uplink_control` pausing answers 404. `more`: further routes, which check `access` themselves. `histories`:
    lines of the log.
    """
    histories = histories or LogHistories.empty()
    console = _Console(source, series, access, uplink_control)
    view, manage = needing(access.require_view), needing(access.require_manage)
    assets = StaticAssets([resources.files("bridge.console"), resources.files(__package__).joinpath("pages")])
    page = ConsolePage("Waypost gateway", assets, "gateway.js")
    feed = LiveFeed(
        {"status": console.live_status}, access, streams_max=STREAMS_MAX, more={"log": LogTopic(histories.lines)}
    )
    routes = [
        HttpRoute("/healthz", console.healthz, methods=PURE),
        HttpRoute("/", page.respond, methods=PURE),
        HttpRoute("/api/v1/status", view(console.status), methods=PURE),
        HttpRoute("/api/v1/series", view(console.points), methods=PURE),
        HttpRoute("/metrics", view(console.metrics), methods=PURE),
        HttpRoute("/api/v1/uplink/pause", manage(console.pause), methods=("POST",)),
        HttpRoute("/api/v1/uplink/resume", manage(console.resume), methods=("POST",)),
        HttpRoute(EVENTS, view(feed.respond), methods=("GET",)),
        *assets.routes,
        openapi_route(resources.files(__package__)),
        *log_routes(histories, access.require_view),
        *more,
    ]
    return application(routes, access)


class _Console:
    def __init__(
        self, source: StatusSource, series: StatusSeries, access: HttpAccess, uplink_control: UplinkControl | None
    ) -> None:
        self._series = series
        self._cached = StatusCache(source)
        self._access = access
        self._uplink_control = uplink_control

    def live_status(self) -> Mapping[str, Any]:
        return {name: value for name, value in self._cached.status.items() if name not in PAGED}

    async def status(self, request: Request) -> Response:
        return Response(self._cached.json, media_type="application/json", headers=NEVER_CACHED)

    async def points(self, request: Request) -> Response:
        span = request.query_params.get("span", "15m")
        if span not in SPANS:
            return RequestRefused(400, f"span must be one of {', '.join(SPANS)}").response()
        content = msgspec.json.encode(self._series.points(span))
        return Response(content, media_type="application/json", headers=NEVER_CACHED)

    async def pause(self, request: Request) -> Response:
        return self._control_uplink(lambda control: control.pause())

    async def resume(self, request: Request) -> Response:
        return self._control_uplink(lambda control: control.resume())

    async def healthz(self, request: Request) -> Response:
        problems = list(self._cached.status.get("problems", ()))
        ok = all(problem["severity"] != "error" for problem in problems)
        shown = {"problems": problems} if await self._may_see(request) else {}
        return JSONResponse({"ok": ok, **shown}, status_code=200 if ok else 503)

    async def metrics(self, request: Request) -> Response:
        from edge.appliance.console.metrics import CONTENT_TYPE  # noqa: PLC0415 - 1 MiB, only for scrapes

        return Response(self._cached.metrics, headers={"Content-Type": CONTENT_TYPE})

    async def _may_see(self, request: Request) -> bool:
        """Return True when the client may view the problems, which name addresses and files."""
        if is_local(request):
            return True
        try:
            await self._access.require_view(request)
        except RequestRefused:
            return False
        return True

    def _control_uplink(self, act: Callable[[UplinkControl], None]) -> Response:
        if self._uplink_control is None:
            return RequestRefused(404, "this gateway has no uplink").response()
        act(self._uplink_control)
        self._cached.forget()
        return Response(self._cached.json, media_type="application/json", headers=NEVER_CACHED)
