"""Server of the console that listens from the start and is loaded at the first connection.

HTTP (an ASGI server, a framework, metrics) takes 5 MiB of code, a tenth of an idle gateway, and many gateways never use
it. So the first client waits while another thread imports the modules; devices are served in the meantime.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.tracing import UNTRACED, Tracer

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from edge.broker.listeners.web.server import WebServer

log = logging.getLogger(__name__)

BACKLOG: Final = 128
"""Accept queue of the kernel until the server is loaded: browsers and a monitor, for a second or two."""

SERVER: Final = "edge.broker.listeners.web.server"


class LazyWebServer:
    """Listening sockets that become a `WebServer` at the first connection."""

    def __init__(
        self,
        sockets: Sequence[BoundSocket],
        make_app: Callable[[], ASGIApp],
        modules: Sequence[str],
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Take ownership of the bound sockets and listen. Create it inside a running loop.

        At the first connection `modules` are imported, then `make_app` is called in the loop. `wrong_port`: see
        `TcpListener`.
        """
        self._sockets = sockets
        self._make_app = make_app
        self._modules = modules
        self._wrong_port = wrong_port
        self._tracer = tracer
        self._web: WebServer | None = None
        self._loading: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        for sock, _ in sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
            self._loop.add_reader(sock, self._connected)

    async def stop(self) -> None:
        """Let open requests end, then close the sockets. Idempotent."""
        if self._loading is None:
            self._stop_watching()
        else:
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._web is not None:
            await self._web.stop()
        self._close()

    def _stop_watching(self) -> None:
        for sock, _ in self._sockets:
            self._loop.remove_reader(sock)

    def _close(self) -> None:
        for sock, _ in self._sockets:
            sock.close()

    def _connected(self) -> None:
        self._stop_watching()
        self._loading = self._loop.create_task(self._open(), name="console opens")

    async def _open(self) -> None:
        try:
            for name in (*self._modules, SERVER):
                await asyncio.to_thread(importlib.import_module, name)
            from edge.broker.listeners.web.server import WebServer  # noqa: PLC0415 - see above

            self._web = WebServer(self._make_app(), self._sockets, wrong_port=self._wrong_port, tracer=self._tracer)
            await self._web.start()
        except Exception:  # the gateway continues without its console
            log.exception("cannot start the console")
            self._close()
