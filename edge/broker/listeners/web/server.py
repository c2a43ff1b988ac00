"""Serves an ASGI application inside the running event loop, on a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from bridge.transport.listening import Listening
from edge.broker.http.limits import (
    HTTP_STRANGERS_MAX,
    HTTP_STRANGERS_OF_ONE_MAX,
    HTTP_USERS_MAX,
    HTTP_USERS_OF_ONE_MAX,
    HTTPS_STRANGERS_MAX,
    HTTPS_STRANGERS_OF_ONE_MAX,
)
from edge.broker.listeners.secure import Handshakes, Identify
from edge.broker.listeners.tcp import BACKLOG, HANDSHAKE_S
from edge.broker.listeners.tls import subject_name
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.connection import HttpConnection, Upgrade, upgraded_by
from edge.broker.listeners.web.places import ConnectionSlots
from edge.broker.listeners.web.turns import FairRequests
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

STARTUP_S_MAX = 10.0
SHUTDOWN_S_MAX = 2
"""Open requests get this long to end (uvicorn counts whole seconds)."""


class ServeError(Exception):
    """The application did not start."""


def _is_no_count(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's line about requests that it cancels: `WebServer.stop` counts them."""
    return not str(record.msg).startswith("Cancel ")


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the main function owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """One application on some sockets: ``await start()``, later ``await stop()``."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[BoundSocket],
        identify: Identify = subject_name,
        upgrade: Upgrade | None = None,
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Take ownership of the bound sockets; listening is started here. `identify`: returns the user of a client
        certificate. `upgrade` gets connections that request WebSocket; None: WebSocket is off.
        `wrong_port`: see `TcpListener`."""
        users = ConnectionSlots(HTTP_USERS_MAX, HTTP_USERS_OF_ONE_MAX)
        strangers = ConnectionSlots(HTTP_STRANGERS_MAX, HTTP_STRANGERS_OF_ONE_MAX)
        secure_strangers = ConnectionSlots(HTTPS_STRANGERS_MAX, HTTPS_STRANGERS_OF_ONE_MAX)
        self._wrong_port = wrong_port or WrongPortReporter()
        self._tracer = tracer
        plain, secure = (partial(self._wrong_port.report, name) for name in ("http", "https"))
        self._plain_connection = partial(HttpConnection, strangers, users, plain)
        self._secure_connection = partial(HttpConnection, secure_strangers, users, secure)
        self._turns = FairRequests(app)
        self._config = uvicorn.Config(
            self._turns,
            http=HttpConnection,
            proxy_headers=False,  # who an address is does not follow from what a client says
            loop="none",
            lifespan="on",
            ws=cast(Any, upgraded_by(upgrade)) if upgrade is not None else "none",  # WebSocket is our own
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S_MAX,
        )
        self._server = _Server(self._config)
        # It warns of each request that is none, and of each upgrade: whoever sends them would fill the log.
        errors = logging.getLogger("uvicorn.error")
        errors.setLevel(logging.ERROR)
        errors.addFilter(_is_no_count)
        self._sockets = sockets
        self._identify = identify
        self._listening: list[Listening] = []
        self._handshakes: list[Handshakes] = []
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
            raise ServeError(f"the web server did not start within {STARTUP_S_MAX:.0f} s") from late
        if not self._server.started:
            await self.stop()
            raise ServeError("the application did not start")
        for sock, certificates in self._sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
            name, make = "http", self._admit
            if certificates is not None:
                name = "https"
                handshakes = Handshakes(
                    name,
                    certificates,
                    self.admit_secure,
                    handshake_s=HANDSHAKE_S,
                    identify=self._identify,
                    wrong_port=self._wrong_port,
                    tracer=self._tracer,
                )
                self._handshakes.append(handshakes)
                make = handshakes.make
            self._listening.append(Listening(name, [sock], make))

    def _admit(self) -> asyncio.Protocol:
        return self._plain_connection(**self._uvicorns())

    def admit_secure(self, identity: str | None) -> asyncio.Protocol:
        """A connection whose TLS handshake is done, on a socket of ours or of another listener; the name in its
        certificate is for the application."""
        return self._secure_connection(identity, **self._uvicorns())

    def _uvicorns(self) -> dict[str, Any]:
        server = self._server
        return {"config": self._config, "server_state": server.server_state, "app_state": server.lifespan.state}

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[])  # uvicorn's own listening accepts one connection a turn of the loop
        except SystemExit as failed:  # uvicorn's way of saying that the application's start failed; not ours to die of
            raise ServeError("the application did not start") from failed

    async def stop(self) -> None:
        """Let open requests end, then close the socket. Idempotent."""
        listening, self._listening = self._listening, []
        for each in listening:
            each.close()
        handshakes, self._handshakes = self._handshakes, []
        for one in handshakes:
            await one.stop()
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            if broken_off := self._turns.broken_off:
                log.warning("http: requests broken off because the server stops, answered 503: %d", broken_off)
        for bound in self._sockets:
            bound.sock.close()
