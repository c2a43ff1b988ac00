"""Listening TCP sockets, which accept connections within a time budget for each turn of the loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bridge.transport.tcp import TcpTransport

log = logging.getLogger(__name__)

ACCEPT_S: Final = 0.0005
"""Seconds of one turn for accepting; one connection takes 0.05 to 0.1 ms."""

ANY_IPV6: Final = "::"
ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - where an operator gave the address of all

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""Address as `socket.getaddrinfo` returns it."""

NO_DESCRIPTOR_WAIT_S: Final = 0.5
"""Pause in seconds when the process has no file descriptor left for a connection: some will be freed."""


class Listening:
    """Accepts connections on some sockets until it is closed."""

    def __init__(
        self,
        name: str,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        """Take ownership of listening, non-blocking sockets. `name`: for the log. `make` creates the protocol of a
        connection. Must be called inside a running loop."""
        self._name = name
        self._sockets = sockets
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first socket."""
        host, port = self._sockets[0].getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop accepting. Idempotent."""
        for pause in self._pauses.values():
            pause.cancel()
        for each in self._sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each)
                each.close()

    def _accept(self, listening: socket.socket) -> None:
        until = time.monotonic() + ACCEPT_S
        while time.monotonic() <= until:
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the client has disconnected again
                continue
            except OSError as error:
                log.warning("%s: cannot accept a connection: %s", self._name, error.strerror)
                self._loop.remove_reader(listening)
                self._pauses[listening] = self._loop.call_later(NO_DESCRIPTOR_WAIT_S, self._resume, listening)
                return
            self._begin(connection, peer)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._accept, listening)

    def _begin(self, connection: socket.socket, peer: tuple[Any, ...]) -> None:
        connection.setblocking(False)
        peer = (sys.intern(peer[0]), *peer[1:])  # thousands may have the same address
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # the client has disconnected again
            connection.close()
            return
        try:
            protocol = self._make()
        except BaseException:
            connection.close()
            raise
        transport = TcpTransport(self._loop, connection, peer, protocol)
        try:
            protocol.connection_made(transport)
        except BaseException:
            transport.abort()
            raise


async def listen(
    name: str,
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    backlog: int,
) -> Listening:
    """Listen on every address of `host` that this machine has, as `bind_all` binds them. Raises OSError."""
    loop, found = asyncio.get_running_loop(), list[AddressInfo]()
    for one in _hosts(host):
        found += await loop.getaddrinfo(one, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = _bind(found, one_port=host == ANY_IPV6)
    try:
        for each in sockets:
            each.listen(backlog)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return Listening(name, sockets, make)


def bind_all(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to every address of `host` that this machine has (without IPv6, ``::1`` is only a name). ``::`` is
    every address, those of IPv4 too. Blocks. Raises OSError when there is no such address, or one of them cannot be
    bound."""
    found = list[AddressInfo]()
    for one in _hosts(host):
        found += socket.getaddrinfo(one, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return _bind(found, one_port=host == ANY_IPV6)


def _hosts(host: str) -> Sequence[str | None]:
    """Return the hosts of a listener. IPv4 has a socket of its own, so that the addresses of its peers look as they do
    elsewhere."""
    return (host, ANY_IPV4) if host == ANY_IPV6 else (host or None,)


def _bind(found: Sequence[AddressInfo], *, one_port: bool) -> list[socket.socket]:
    """Bind a socket to each address. `one_port`: all have the port of the first one. Raises OSError."""
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            port = sockets[0].getsockname()[1] if one_port and sockets else address[1]
            try:
                sockets.append(_bound(family, kind, protocol, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                absent = error
        if absent is not None and not sockets:
            raise absent
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted sockets inherit it: a vanished peer is detected even without a keep-alive of its protocol
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening
