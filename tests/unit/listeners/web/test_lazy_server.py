"""The console's server listens at once and loads on the first request; an error of loading ends nothing else."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys

import pytest
from starlette.types import ASGIApp

from edge.appliance.console.app import make_app
from edge.appliance.console.series import SeriesSample, StatusSeries
from edge.broker.http.access import HttpAccess
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.lazy_server import SERVER, LazyWebServer
from tests.unit.listeners.web.web_client import bound_socket, get_answer


def app() -> ASGIApp:
    return make_app(lambda: {"gateway": "gw1"}, StatusSeries(lambda: SeriesSample(0, 0, 0, True)), HttpAccess())


async def refused(port: int) -> None:
    """Return once the port is closed; until then connections close under the client."""
    while True:
        try:
            assert await get_answer(port, "/") == b""
        except ConnectionResetError:
            continue
        except ConnectionRefusedError:
            return


class Broken:
    """Application that fails to load."""

    calls = 0

    def __call__(self) -> ASGIApp:
        self.calls += 1
        raise ValueError("no page")


def test_first_and_simultaneous_requests_are_served() -> None:
    async def main() -> None:
        sock = bound_socket()
        port = sock.getsockname()[1]
        server = LazyWebServer([BoundSocket(sock)], app, ("edge.appliance.console.app",))
        answers = await asyncio.gather(*(get_answer(port, "/api/v1/status") for _ in range(20)))
        assert all(b'"gateway":"gw1"' in answer for answer in answers)
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await get_answer(port, "/")

    asyncio.run(main())


def test_server_without_requests_is_never_loaded() -> None:
    async def main() -> None:
        sock = bound_socket()
        port = sock.getsockname()[1]
        broken = Broken()
        server = LazyWebServer([BoundSocket(sock)], broken, ())
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await get_answer(port, "/")
        assert not broken.calls

    asyncio.run(main())


def test_server_may_stop_while_it_loads() -> None:
    async def main() -> None:
        sock = bound_socket()
        port = sock.getsockname()[1]
        server = LazyWebServer([BoundSocket(sock)], app, ())
        with socket.create_connection(("127.0.0.1", port)):
            await asyncio.sleep(0)  # the loop sees the connection in its next turn, and the server starts to open
            await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await get_answer(port, "/")

    asyncio.run(main())


@pytest.mark.parametrize("modules", [(), ("edge.appliance.console.there_is_none",)])
def test_loading_error_is_logged_and_ends_nothing_else(
    modules: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        sock = bound_socket()
        port = sock.getsockname()[1]
        server = LazyWebServer([BoundSocket(sock)], Broken(), modules)
        async with asyncio.timeout(10):
            await refused(port)
        await server.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "cannot start the console" in caplog.text


def test_gateway_loads_no_http_module_until_then() -> None:
    program = (
        "import sys, edge.appliance.gateway\n"
        f"print(*[name for name in ('uvicorn', 'starlette', 'prometheus_client', {SERVER!r}) if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "\n"
