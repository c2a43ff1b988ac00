"""The console's server: listens from the start, and loads what serves the pages when somebody comes.

What HTTP takes (an ASGI server, a framework, metrics) is 5 MiB of code: a tenth of an idle gateway, which many never
use. So the first to come waits while it is imported, beside the event loop, and devices are served meanwhile.
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
"""Connections the kernel holds until the pages can be served: browsers and a monitor, for a second or two."""

SERVER: Final = "edge.broker.listeners.web.server"


class LazyWebServer:
    """Listening sockets that become a `WebServer` with the first connection."""

    def __init__(
        self,
        sockets: Sequence[BoundSocket],
        make_app: Callable[[], ASGIApp],
        modules: Sequence[str],
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Take ownership of the sockets, which are bound, and listen. `make_app` is called in the loop when the first
        client comes, after `modules`, which it needs, have been imported. `wrong_port`: see `TcpListener`. Made inside
        a running loop."""
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
            self._loop.add_reader(sock, self._knocked)

    async def stop(self) -> None:
        """Let open requests end, then close the socket. Idempotent."""
        if self._loading is None:
            self._deaf()
        else:
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._web is not None:
            await self._web.stop()
        self._close()

    def _deaf(self) -> None:
        for sock, _ in self._sockets:
            self._loop.remove_reader(sock)

    def _close(self) -> None:
        for sock, _ in self._sockets:
            sock.close()

    def _knocked(self) -> None:
        self._deaf()
        self._loading = self._loop.create_task(self._open(), name="console opens")

    async def _open(self) -> None:
        try:
            for name in (*self._modules, SERVER):
                await asyncio.to_thread(importlib.import_module, name)
            from edge.broker.listeners.web.server import WebServer  # noqa: PLC0415 - see above

            self._web = WebServer(self._make_app(), self._sockets, wrong_port=self._wrong_port, tracer=self._tracer)
            await self._web.start()
        except Exception:  # the task ends here: the gateway goes on without its console
            log.exception("the console cannot be served")
            self._close()
