"""The console's server runs inside the gateway's loop, ends on request, and survives a broken application."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette

from edge.appliance.console.app import make_app
from edge.appliance.console.series import SeriesSample, StatusSeries
from edge.broker.http.access import HttpAccess
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.server import ServeError, WebServer
from tests.unit.listeners.web.web_client import bound_socket, get_answer


def test_server_serves_stops_and_leaves_signal_handlers() -> None:
    async def main() -> None:
        sock = bound_socket()
        port = sock.getsockname()[1]
        before = signal.getsignal(signal.SIGINT)
        server = WebServer(
            make_app(lambda: {"gateway": "gw1"}, StatusSeries(lambda: SeriesSample(0, 0, 0, True)), HttpAccess()),
            [BoundSocket(sock)],
        )
        await server.start()
        assert signal.getsignal(signal.SIGINT) is before
        assert b'"gateway":"gw1"' in await get_answer(port, "/api/v1/status")
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await get_answer(port, "/")

    asyncio.run(main())


def test_failing_application_start_raises() -> None:
    @contextlib.asynccontextmanager
    async def broken(app: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("no")
        yield

    async def main() -> None:
        with pytest.raises(ServeError, match="did not start"):
            await WebServer(Starlette(lifespan=broken), [BoundSocket(bound_socket())]).start()

    asyncio.run(main())
