"""TCP listeners, with or without TLS: accept and count connections and create their drivers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Mapping

from bridge.transport.driver import ConnectionDriver
from bridge.transport.listening import Listening, listen
from edge.broker.listeners.secure import Admit, HandshakeRate, Handshakes, Identify
from edge.broker.listeners.tls import Certificates, subject_name
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Accept queue of the kernel, for a fleet of devices that reconnects at once after a power cut."""


STOP_S = 5.0
"""Seconds that `stop` waits for all connections to end: 10 000 take half a second."""

HANDSHAKE_S = 10.0
"""Default time limit from accept to the end of the TLS handshake, in seconds."""

Gone = Callable[[ConnectionDriver], None]
"""Called at the end of a connection."""

MakeDriver = Callable[[Gone, str | None], ConnectionDriver | None]
"""(callback for the end of the connection, name in the client certificate) -> driver, or None at the limit."""


class ListenError(Exception):
    """Listening on a port failed. The message names the port and the reason."""


def require_free(name: str, host: str, port: int) -> None:
    """Check that a port is free before the listener is created. Blocks. Raises ListenError."""
    if not port:
        return
    known = host.encode() if host.isascii() else host  # for a str Python loads the tables of IDNA: 0.7 MiB
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(known, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise ListenError(f"{name}: cannot listen on {host}:{port}: {_reason(error)}") from error


class TcpListener:
    """One listening socket; `make_driver` creates the drivers of its connections."""

    def __init__(
        self,
        name: str,
        make_driver: MakeDriver,
        refuse: MakeDriver | None = None,
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`refuse` creates the driver that refuses a connection at the limit; without one the socket is closed.
        `wrong_port` logs clients of other protocols."""
        self.name = name
        self.drivers: dict[ConnectionDriver, None] = {}
        """Drivers in order of accept. A dict, as a set of thousands takes twice the memory."""
        self.refusing: set[ConnectionDriver] = set()
        """Drivers of connections that are being refused at the limit."""
        self.refused = 0
        """Connections refused at the limit."""
        self._make_driver = make_driver
        self._refuse = refuse
        self._tracer = tracer
        self._wrong_port = wrong_port or WrongPortReporter()
        self._gone: Gone = self._forget
        self._listening: Listening | None = None
        self._handshakes: Handshakes | None = None

    async def start(
        self,
        host: str,
        port: int,
        certificates: Certificates | None = None,
        *,
        handshake_s: float = HANDSHAKE_S,
        identify: Identify = subject_name,
        others: Mapping[str, Admit] | None = None,
        rate: HandshakeRate | None = None,
    ) -> tuple[str, int]:
        """Listen, with TLS if there are certificates. Return the bound address (the kernel replaces port 0).

        `handshake_s`: from accept to the end of the TLS handshake. `identify`, `others`, `rate`: see `Handshakes`.
        Raises ListenError.
        """
        make = self._accept
        if certificates is not None:
            self._handshakes = Handshakes(
                self.name,
                certificates,
                self.admit,
                handshake_s=handshake_s,
                identify=identify,
                others=others,
                wrong_port=self._wrong_port,
                tracer=self._tracer,
                rate=rate,
            )
            make = self._handshakes.make
        try:
            self._listening = await listen(self.name, make, host, port, BACKLOG)
        except OSError as error:
            raise ListenError(f"{self.name}: cannot listen on {host}:{port}: {_reason(error)}") from error
        return self._listening.address

    def stop_accepting(self) -> None:
        """Stop accepting; open connections stay. Idempotent."""
        if self._listening is not None:
            self._listening.close()

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        self.stop_accepting()
        if self._handshakes is not None:
            await self._handshakes.stop()
        for driver in [*self.drivers, *self.refusing]:
            driver.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self.drivers or self.refusing:  # they end over several turns of the loop
                    await asyncio.sleep(0)

    def _forget(self, driver: ConnectionDriver) -> None:
        self.drivers.pop(driver, None)
        if driver.connection.spoken:
            self._wrong_port.report(self.name, driver.address, driver.connection.spoken)

    def _accept(self) -> asyncio.Protocol:
        return self.admit(None) or _ConnectionRefusal()

    def admit(self, identity: str | None, make_driver: MakeDriver | None = None) -> ConnectionDriver | None:
        """Create the driver of an accepted connection; None: close it at once. `make_driver`: instead of the listener's
        own."""
        driver = (make_driver or self._make_driver)(self._gone, identity)
        if driver is not None:
            self.drivers[driver] = None
            return driver
        self.refused += 1
        if self._refuse is not None:
            driver = self._refuse(self.refusing.discard, identity)
            if driver is not None:
                self.refusing.add(driver)
        return driver


class _ConnectionRefusal(asyncio.Protocol):
    """Closes a connection that exceeds the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use: stop the other program or choose another port (0 picks a free one)"
    if error.errno == errno.EACCES:
        return "not permitted: ports below 1024 need a privilege"
    if isinstance(error, socket.gaierror):
        return "unknown host name"
    return error.strerror or str(error)
