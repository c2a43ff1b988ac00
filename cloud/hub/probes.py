"""Probes of an orchestrator: whether the process runs, and whether it takes new connections.

``GET /livez``   200 while the event loop turns: no answer means that the process hangs
``GET /readyz``  200 while the hub takes connections, else 503 with the reason

Neither depends on the lake: while nothing can land, gateways keep their messages, and another hub would not land them
either. They answer under any host name and without credentials, and show nothing about the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.broker.http.caching import NEVER_CACHED

LIVE: Final = "/livez"
READY: Final = "/readyz"


class Probes:
    """ASGI application that answers the probes, in front of the one that answers everything else."""

    def __init__(self, app: ASGIApp, unready: Callable[[], str | None]) -> None:
        """`unready` returns why the hub takes no connections; None if it takes them."""
        self._app = app
        self._unready = unready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (LIVE, READY) or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        why = self._unready() if scope["path"] == READY else None
        answer = PlainTextResponse(f"{why or 'ok'}\n", 503 if why else 200, headers=dict(NEVER_CACHED))
        await answer(scope, receive, send)
