"""The console's server runs inside the gateway's loop, ends on request, and survives a broken application."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette

from edge.appliance.console.app import make_app
from edge.appliance.console.series import SeriesSample, StatusSeries
from edge.broker.http.access import HttpAccess
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.server import ServeError, WebServer


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_it_serves_and_stops_and_leaves_the_signals_alone() -> None:
    async def main() -> None:
        sock = bound()
        port = sock.getsockname()[1]
        before = signal.getsignal(signal.SIGINT)
        server = WebServer(
            make_app(lambda: {"gateway": "gw1"}, StatusSeries(lambda: SeriesSample(0, 0, 0, True)), HttpAccess()),
            [BoundSocket(sock)],
        )
        await server.start()
        assert signal.getsignal(signal.SIGINT) is before
        assert b'"gateway":"gw1"' in await get(port, "/api/v1/status")
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await get(port, "/")

    asyncio.run(main())


def test_an_application_that_does_not_start_is_an_error_of_ours() -> None:
    @contextlib.asynccontextmanager
    async def broken(app: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("no")
        yield

    async def main() -> None:
        with pytest.raises(ServeError, match="did not start"):
            await WebServer(Starlette(lifespan=broken), [BoundSocket(bound())]).start()

    asyncio.run(main())
