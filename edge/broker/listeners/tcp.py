"""TCP listeners: accept, count, and put a driver around the protocol's connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from bridge.driver import Driver

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections the kernel holds until we accept them: a fleet of devices that returns at once after a power cut."""


class ListenError(Exception):
    """A port cannot be listened on; the message names it and the reason."""


class TcpListener:
    """One listening socket whose connections are made by `make_driver`."""

    def __init__(self, name: str, make_driver: Callable[[Callable[[Driver], None]], Driver | None]) -> None:
        """`make_driver` gets the callback to be told of the connection's end; None when there is no room for one."""
        self.name = name
        self.drivers: set[Driver] = set()
        self.refused = 0
        """Connections closed at once because there was no room."""
        self._make_driver = make_driver
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address bound (a port of 0 is chosen by the kernel). Raises ListenError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG, reuse_address=True)
        except OSError as error:
            raise ListenError(f"{self.name}: cannot listen on {host}:{port}: {_reason(error)}") from error
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        if self._server is not None:
            self._server.close()
        for driver in list(self.drivers):
            driver.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self) -> asyncio.Protocol:
        driver = self._make_driver(self.drivers.discard)
        if driver is None:
            self.refused += 1
            return _Refusal()
        self.drivers.add(driver)
        return driver


class _Refusal(asyncio.Protocol):
    """Closes a connection there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop the other program or choose another port (0 picks a free one)"
    if error.errno == errno.EACCES:
        return "not permitted; ports below 1024 need a privilege"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    return error.strerror or str(error)
