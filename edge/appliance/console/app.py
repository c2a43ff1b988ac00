"""Routes of the console.

=============================  ==============  ====================================================================
``GET /healthz``               anyone          200 while it serves, 503 otherwise; with ``view`` also the problems
``GET /``                      view            the page, self-contained
``GET /api/v1/status``         view            the status, `status.GatewayStatus`
``GET /api/v1/history``        view            the last 15 minutes: ``{"samples": [[seconds, received, …], …]}``
``GET /metrics``               view            metrics for Prometheus
``POST /api/v1/uplink/pause``  manage          close the uplink until ``/resume``
=============================  ==============  ====================================================================

The second column is the required right (`Operation`) on the whole space. Only users get 404 for an unknown path. On a
gateway without authentication everyone may view, and clients on this machine may manage.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from edge.appliance.console.history import StatusHistory
from edge.appliance.console.snapshot import StatusCache
from edge.appliance.console.status import UplinkControl
from edge.broker.http.access import HttpAccess, is_local
from edge.broker.http.application import application, needing
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

NEVER_CACHED = {"Cache-Control": "no-store"}


def make_app(
    history: StatusHistory,
    access: HttpAccess,
    uplink_control: UplinkControl | None = None,
    more: Sequence[HttpRoute] = (),
) -> ASGIApp:
    """Make the console over a history, which the caller keeps sampling, and its source of status.

    Without `uplink_control` pausing answers 404. `more`: further routes, which check `access` themselves.
    """
    console = _Console(history, access, uplink_control)
    view, manage = needing(access.require_view), needing(access.require_manage)
    routes = [
        HttpRoute("/healthz", console.healthz, methods=PURE),
        HttpRoute("/", view(console.page), methods=PURE),
        HttpRoute("/api/v1/status", view(console.status), methods=PURE),
        HttpRoute("/api/v1/history", view(console.samples), methods=PURE),
        HttpRoute("/metrics", view(console.metrics), methods=PURE),
        HttpRoute("/api/v1/uplink/pause", manage(console.pause), methods=("POST",)),
        HttpRoute("/api/v1/uplink/resume", manage(console.resume), methods=("POST",)),
        *more,
    ]
    return application(routes, access)


class _Console:
    def __init__(self, history: StatusHistory, access: HttpAccess, uplink_control: UplinkControl | None) -> None:
        self._history = history
        self._cached = StatusCache(history.source)
        self._access = access
        self._uplink_control = uplink_control
        self._page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._page_headers = {**NEVER_CACHED, "Content-Security-Policy": _policy(self._page)}

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=self._page_headers)

    async def status(self, request: Request) -> Response:
        return Response(self._cached.json, media_type="application/json", headers=NEVER_CACHED)

    async def samples(self, request: Request) -> Response:
        return JSONResponse({"samples": self._history.samples}, headers=NEVER_CACHED)

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
            return JSONResponse({"error": "this gateway has no uplink"}, status_code=404)
        act(self._uplink_control)
        self._cached.forget()
        return Response(self._cached.json, media_type="application/json", headers=NEVER_CACHED)


def _policy(page: str) -> str:
    """Return the content security policy: the page's own inline script and style, connecting to this gateway only."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(f.encode()).digest()).decode()}'" for f in found)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
