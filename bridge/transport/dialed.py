"""Connections that we open: a connected socket becomes a transport of ours, with TLS or without.

A peer we have chosen may be as hostile as one that came by itself, so it is served in the same turns. It is known from
the beginning: whoever else connects meanwhile is not in its way.
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
"""How long a TLS handshake may take where whoever dials has no shorter time; as asyncio has it."""


class NoTlsError(ConnectionError):
    """The peer has closed the connection in the handshake, without a word."""

    def __init__(self) -> None:
        super().__init__(
            errno.ECONNRESET, "the peer closed the connection in the TLS handshake; does it speak TLS on this port?"
        )


async def transport_over(
    connection: socket.socket,
    make: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext | None = None,
    host: str = "",
) -> ServedTransport:
    """A transport over a socket that is connected and does not block; it is taken, and closed where there is none.

    `make` is called once the peer is there, behind the handshake where there is a `context`, and
    `connection_made` at once. `host`: the peer's name or address, which its certificate is to be of.
    Raises OSError, of which `ssl.SSLError` is one, when there is no TLS with the peer.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = connection.getpeername()
    except OSError:  # it went away again
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
    """One, as the client: `bridge.transport.tls.Handshaking`."""

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
            return None  # whoever dialed waits no more
        protocol = self._make()
        self._done.set_result(None)
        return protocol

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or NoTlsError())
