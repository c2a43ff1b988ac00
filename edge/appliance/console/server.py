"""Serves an ASGI application inside the running event loop, on a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

STARTUP_S_MAX = 10.0
SHUTDOWN_S_MAX = 2
"""Open requests get this long to end (uvicorn counts whole seconds)."""


class ServeError(Exception):
    """The application did not start."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the gateway's main function owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """One application on one socket: ``await start()``, later ``await stop()``."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        """Takes ownership of `sock`, which is bound; listening is started here."""
        config = uvicorn.Config(
            app,
            loop="none",
            lifespan="on",
            ws="none",  # the gateway's WebSocket listeners are its own
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S_MAX,
        )
        self._server = _Server(config)
        self._socket = sock
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once it serves. Raises ServeError when it does not come up."""
        self._serving = asyncio.create_task(self._serve())
        try:
            async with asyncio.timeout(STARTUP_S_MAX):
                while not self._server.started and not self._serving.done():
                    await asyncio.sleep(0.01)
        except TimeoutError as late:
            await self.stop()
            raise ServeError(f"the console did not start within {STARTUP_S_MAX:.0f} s") from late
        if not self._server.started:
            await self.stop()
            raise ServeError("the console's application did not start")

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        except SystemExit as failed:  # uvicorn's way of saying that the application's start failed; not ours to die of
            raise ServeError("the console's application did not start") from failed

    async def stop(self) -> None:
        """Let open requests end, then close the socket. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
        self._socket.close()
