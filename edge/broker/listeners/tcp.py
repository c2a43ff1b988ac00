"""TCP listeners, with TLS or without: accept, count, and put a driver around the protocol's connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Mapping

from bridge.transport.driver import ConnectionDriver
from bridge.transport.listening import Listening, listen
from edge.broker.listeners.secure import Admit, Handshakes, Identify
from edge.broker.listeners.tls import Certificates, subject_name
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections the kernel holds until we accept them: a fleet of devices that returns at once after a power cut."""


TOLD_S = 5.0
"""How long `stop` waits until the owners of all connections have been told: 10 000 take half a second."""

HANDSHAKE_S = 10.0
"""From accept to the end of the TLS handshake, unless said otherwise."""

Gone = Callable[[ConnectionDriver], None]
"""Told of a connection's end."""

MakeDriver = Callable[[Gone, str | None], ConnectionDriver | None]
"""(whom to tell of the connection's end, name in the verified client certificate if any) -> a driver; None when there
is no room for one."""


class ListenError(Exception):
    """A port cannot be listened on; the message names it and the reason."""


def require_free(name: str, host: str, port: int) -> None:
    """Look whether a port can be listened on, before anything is made for who would. Blocks. Raises ListenError."""
    if not port:
        return
    known = host.encode() if host.isascii() else host  # of a str Python loads the tables of IDNA: 0.7 MiB
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(known, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise ListenError(f"{name}: cannot listen on {host}:{port}: {_reason(error)}") from error


class TcpListener:
    """One listening socket whose connections are made by `make_driver`."""

    def __init__(
        self,
        name: str,
        make_driver: MakeDriver,
        turn_away: MakeDriver | None = None,
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`turn_away` makes the driver of a connection `make_driver` had no room for, to tell it so; where it makes
        none either, the socket is closed at once. `wrong_port` logs clients
        of other protocols; None: it names no port for them."""
        self.name = name
        self.drivers: dict[ConnectionDriver, None] = {}
        """In the order they came. A set of thousands takes twice the room."""
        self.turned_away: set[ConnectionDriver] = set()
        """Open sockets that are being told that there is no room."""
        self.refused = 0
        """Connections there was no room for."""
        self._make_driver = make_driver
        self._turn_away = turn_away
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
    ) -> tuple[str, int]:
        """Listen, with TLS where there are certificates; returns the address bound (a port of 0 is chosen by the
        kernel). `handshake_s`: from accept to the end of the TLS handshake; `identify`, `others`: see
        `Handshakes`. Raises ListenError."""
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
            )
            make = self._handshakes.make
        try:
            self._listening = await listen(self.name, make, host, port, BACKLOG)
        except OSError as error:
            raise ListenError(f"{self.name}: cannot listen on {host}:{port}: {_reason(error)}") from error
        return self._listening.address

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        if self._listening is not None:
            self._listening.close()
        if self._handshakes is not None:
            await self._handshakes.stop()
        for driver in [*self.drivers, *self.turned_away]:
            driver.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_S):
                while self.drivers or self.turned_away:  # many that end at the same time are told in turns
                    await asyncio.sleep(0)

    def _forget(self, driver: ConnectionDriver) -> None:
        self.drivers.pop(driver, None)
        if driver.connection.spoken:
            self._wrong_port.report(self.name, driver.address, driver.connection.spoken)

    def _accept(self) -> asyncio.Protocol:
        return self.admit(None) or _ConnectionRefusal()

    def admit(self, identity: str | None, make_driver: MakeDriver | None = None) -> ConnectionDriver | None:
        """A driver for a connection somebody has accepted; None: there is no room. `make_driver`: in place of the
        listener's own."""
        driver = (make_driver or self._make_driver)(self._gone, identity)
        if driver is not None:
            self.drivers[driver] = None
            return driver
        self.refused += 1
        if self._turn_away is not None:
            driver = self._turn_away(self.turned_away.discard, identity)
            if driver is not None:
                self.turned_away.add(driver)
        return driver


class _ConnectionRefusal(asyncio.Protocol):
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
