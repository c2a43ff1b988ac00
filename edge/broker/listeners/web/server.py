"""Serve an ASGI application inside the running event loop, on bound sockets."""

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
from edge.broker.listeners.web.fair_requests import FairRequests
from edge.broker.listeners.web.slots import ConnectionSlots
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

STARTUP_S_MAX = 10.0
SHUTDOWN_S_MAX = 2
"""Seconds that open requests have to end (uvicorn requires an integer)."""


class ServeError(Exception):
    """The application did not start."""


def _keep_record(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's line about cancelled requests, which `WebServer.stop` logs."""
    return not str(record.msg).startswith("Cancel ")


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, as the main function handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """Serves one application on some sockets. Call `start`, later `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[BoundSocket],
        identify: Identify = subject_name,
        upgrade: Upgrade | None = None,
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Take ownership of the bound sockets. `identify` returns the user of a client certificate. `upgrade` creates
        the protocol of WebSocket connections; None: WebSocket is off. `wrong_port`: see `TcpListener`."""
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
            proxy_headers=False,  # any client can send these headers
            loop="none",
            lifespan="on",
            ws=cast(Any, upgraded_by(upgrade)) if upgrade is not None else "none",  # WebSocket is our own
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S_MAX,
        )
        self._server = _Server(self._config)
        # uvicorn warns of each invalid request and each upgrade, with which clients could fill the log.
        errors = logging.getLogger("uvicorn.error")
        errors.setLevel(logging.ERROR)
        errors.addFilter(_keep_record)
        self._sockets = sockets
        self._identify = identify
        self._listening: list[Listening] = []
        self._handshakes: list[Handshakes] = []
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start serving. Raises ServeError."""
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
        return self._plain_connection(**self._uvicorn_arguments())

    def admit_secure(self, identity: str | None) -> asyncio.Protocol:
        """Return the protocol of a connection after its TLS handshake, on a socket of this or another listener.

        `identity`: name in its certificate, for the application.
        """
        return self._secure_connection(identity, **self._uvicorn_arguments())

    def _uvicorn_arguments(self) -> dict[str, Any]:
        server = self._server
        return {"config": self._config, "server_state": server.server_state, "app_state": server.lifespan.state}

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[])  # uvicorn itself accepts only one connection in a turn of the loop
        except SystemExit as failed:  # uvicorn raises it if the application does not start
            raise ServeError("the application did not start") from failed

    async def stop(self) -> None:
        """Let open requests end, then close the sockets. Idempotent."""
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
            if cancelled := self._turns.cancelled:
                log.warning("http: cancelled %d requests at the stop of the server, answered with 503", cancelled)
        for bound in self._sockets:
            bound.sock.close()
