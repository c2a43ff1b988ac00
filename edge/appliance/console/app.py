"""The console's routes.

``GET /``                      the page (self-contained)
``GET /api/v1/status``         the status, `status.Status`
``GET /api/v1/history``        the last 15 minutes, ``{"samples": [[seconds, received, backlog, acked, up], ...]}``
``POST /api/v1/uplink/pause``  close the uplink and keep it closed; ``/resume`` takes it up again. From loopback only.
``GET /healthz``               200 while it serves, 503 with the problems otherwise
``GET /metrics``               for Prometheus
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Callable, Sequence
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from edge.appliance.console.history import History
from edge.appliance.console.status import UplinkControl, status_of

NEVER_CACHED = {"Cache-Control": "no-store"}
ONLY_HERE = "only from the gateway's own machine: open this page there, or through ssh -L 8080:127.0.0.1:8080 to it"


def make_app(history: History, uplink_control: UplinkControl | None = None, more: Sequence[Route] = ()) -> Starlette:
    """The console over a history, which somebody else keeps sampling, and its source of status. Without
    `uplink_control` pausing answers 404. `more` routes are served too."""
    console = _Console(history, uplink_control)
    routes = [
        Route("/", console.page),
        Route("/api/v1/status", console.status),
        Route("/api/v1/history", console.samples),
        Route("/api/v1/uplink/pause", console.pause, methods=["POST"]),
        Route("/api/v1/uplink/resume", console.resume, methods=["POST"]),
        Route("/healthz", console.healthz),
        Route("/metrics", console.metrics),
        *more,
    ]
    return Starlette(routes=routes)


class _Console:
    def __init__(self, history: History, uplink_control: UplinkControl | None) -> None:
        self._history = history
        self._source = history.source
        self._control = uplink_control
        self._page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._page_headers = {**NEVER_CACHED, "Content-Security-Policy": _policy(self._page)}

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=self._page_headers)

    async def status(self, request: Request) -> Response:
        return JSONResponse(dict(self._source()), headers=NEVER_CACHED)

    async def samples(self, request: Request) -> Response:
        return JSONResponse({"samples": self._history.samples}, headers=NEVER_CACHED)

    async def pause(self, request: Request) -> Response:
        return self._steer(request, lambda control: control.pause())

    async def resume(self, request: Request) -> Response:
        return self._steer(request, lambda control: control.resume())

    async def healthz(self, request: Request) -> Response:
        problems = list(status_of(self._source).get("problems", ()))
        return JSONResponse({"ok": not problems, "problems": problems}, status_code=503 if problems else 200)

    async def metrics(self, request: Request) -> Response:
        from edge.appliance.console.metrics import CONTENT_TYPE, exposition  # noqa: PLC0415 - 1 MiB for who scrapes

        return Response(exposition(self._source), headers={"Content-Type": CONTENT_TYPE})

    def _steer(self, request: Request, act: Callable[[UplinkControl], None]) -> Response:
        """A page of some other site must not steer us through the user's browser: `Origin` has to be our own."""
        if self._control is None:
            return JSONResponse({"error": "this gateway has no uplink"}, status_code=404)
        origin = request.headers.get("origin")
        if not _is_loopback(request):
            return JSONResponse({"error": ONLY_HERE}, status_code=403)
        if origin not in (None, f"{request.url.scheme}://{request.url.netloc}"):
            return JSONResponse({"error": "only from this console's own page"}, status_code=403)
        act(self._control)
        return JSONResponse(dict(self._source()), headers=NEVER_CACHED)


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _policy(page: str) -> str:
    """Only the page's own inline script and style run, and they talk to nobody but us."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(f.encode()).digest()).decode()}'" for f in found)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
