"""Serves an ASGI application inside the running event loop, on a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from edge.appliance.console.bound_socket import BoundSocket
from edge.appliance.console.connection import HttpConnection
from edge.broker.http.peer import KEY, Peer
from edge.broker.limits import HTTP_HEAD_BYTES_MAX
from edge.broker.listeners.secure import SecureAcceptor
from edge.broker.listeners.tcp import HANDSHAKE_S

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
    """One application on some sockets: ``await start()``, later ``await stop()``."""

    def __init__(self, app: ASGIApp, sockets: Sequence[BoundSocket]) -> None:
        """Takes ownership of the sockets, which are bound; listening is started here."""
        self._config = uvicorn.Config(
            app,
            http=HttpConnection,
            h11_max_incomplete_event_size=HTTP_HEAD_BYTES_MAX,
            loop="none",
            lifespan="on",
            ws="none",  # the gateway's WebSocket listeners are its own
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S_MAX,
        )
        self._server = _Server(self._config)
        self._sockets = sockets
        self._acceptors: list[SecureAcceptor] = []
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
        for bound in self._sockets:
            if bound.certificates is not None:
                acceptor = SecureAcceptor("https", bound.sock, bound.certificates, self._admit, handshake_s=HANDSHAKE_S)
                self._acceptors.append(acceptor)

    def _admit(self, identity: str | None) -> asyncio.Protocol:
        """A connection whose TLS handshake is done; the name in its certificate is for the application."""
        state = {**self._server.lifespan.state, KEY: Peer(identity)}
        return HttpConnection(config=self._config, server_state=self._server.server_state, app_state=state)

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[sock for sock, certificates in self._sockets if certificates is None])
        except SystemExit as failed:  # uvicorn's way of saying that the application's start failed; not ours to die of
            raise ServeError("the console's application did not start") from failed

    async def stop(self) -> None:
        """Let open requests end, then close the socket. Idempotent."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            await acceptor.stop()
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
        for bound in self._sockets:
            bound.sock.close()
