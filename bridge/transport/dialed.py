"""Outgoing connections: a connected socket becomes one of our transports, with TLS or without.

A dialed peer may be as hostile as a client, so it is served with the same budgets. It counts as authenticated from the
start, so unauthenticated clients do not delay it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from bridge.transport.served import ServedTransport
from bridge.transport.tcp import TcpTransport
from bridge.transport.tls import TlsTransport

HANDSHAKE_S: Final = 60.0
"""Longest TLS handshake in seconds, unless the caller has a shorter timeout; the same as asyncio's default."""


class NoTlsError(ConnectionError):
    """The peer closed the connection in the handshake without an alert."""

    def __init__(self) -> None:
        super().__init__(
            errno.ECONNRESET,
            "the peer closed the connection in the TLS handshake; check that it speaks TLS on this port",
        )


async def transport_over(
    connection: socket.socket,
    make: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext | None = None,
    host: str = "",
) -> ServedTransport:
    """Return a transport over a connected, non-blocking socket. It takes ownership, and closes the socket on failure.

    `make` creates the protocol, after the TLS handshake where there is a `context`, and `connection_made` follows at
    once. `host`: name or address of the peer, which its certificate must have. Raises OSError, including
    `ssl.SSLError`, when the handshake fails.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = connection.getpeername()
    except OSError:  # the peer has disconnected again
        connection.close()
        raise
    if context is not None:
        handshake = _Handshake(make, context, host)
        return await handshake.over(connection, peer)
    try:
        protocol = make()
    except BaseException:
        connection.close()
        raise
    transport = TcpTransport(asyncio.get_running_loop(), connection, peer, protocol)
    transport.identified()
    try:
        protocol.connection_made(transport)
    except BaseException:
        transport.abort()
        raise
    return transport


class _Handshake:
    """One TLS handshake as the client; implements `bridge.transport.tls.Handshaking`."""

    def __init__(self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, host: str) -> None:
        self._make = make
        self._context = context
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def over(self, connection: socket.socket, peer: object) -> ServedTransport:
        secured = TlsTransport(self)
        transport = TcpTransport(self._loop, connection, peer, secured)
        transport.identified()
        try:
            secured.connection_made(transport)
            await self._done
        except BaseException:
            transport.abort()
            raise
        return secured

    def arrived(self, transport: TlsTransport) -> None:
        transport.begin_as_client(self._context, self._loop.time() + HANDSHAKE_S, self._host)

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        if self._done.done():
            return None  # the caller was cancelled
        protocol = self._make()
        self._done.set_result(None)
        return protocol

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or NoTlsError())
