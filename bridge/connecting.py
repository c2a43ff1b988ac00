"""Dial a peer: open a socket, by a network interface or through a proxy where configured, and put one of our
transports over it (`bridge.transport.dialed`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from bridge.dialer import AttemptError
from bridge.proxy import Proxy, ProxyError, Tunnel
from bridge.transport.dialed import transport_over
from bridge.transport.served import ServedTransport

READ_BYTES: Final = 4_096
"""Bytes of a proxy's answer that are read at a time."""


class Streams(NamedTuple):
    """Reader and writer of a connection, for coroutines."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def connect(
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    interface: str | None = None,
    proxy: Proxy | None = None,
) -> ServedTransport:
    """Connect a protocol from `make` to a peer. Raises as `socket_to`, and `ssl.SSLError`."""
    return await transport_over(await socket_to(host, port, interface, proxy), make, tls, host)


async def streams_over(connection: socket.socket, context: ssl.SSLContext | None = None, host: str = "") -> Streams:
    """Return streams over a connected socket, as `bridge.transport.dialed.transport_over` does for a protocol."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await transport_over(connection, lambda: protocol, context, host)
    return Streams(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def socket_to(host: str, port: int, interface: str | None = None, proxy: Proxy | None = None) -> socket.socket:
    """Return a connected TCP socket (see `socket_by`), through a proxy where one is given.

    Raises `AttemptError`, which names a proxy that refuses, and OSError as connect(2).
    """
    if proxy is None:
        return await socket_by(interface, host, port)
    try:
        opened = await socket_by(interface, proxy.host, proxy.port)
    except OSError as error:
        raise AttemptError(f"the proxy {proxy.place} does not answer: {error.strerror or error}") from error
    try:
        await _pass(opened, Tunnel(proxy, host, port))
    except ProxyError as error:
        opened.close()
        raise AttemptError(str(error)) from error
    except BaseException:
        opened.close()
        raise
    return opened


async def _pass(opened: socket.socket, tunnel: Tunnel) -> None:
    """Open a tunnel through the proxy. Raises `ProxyError`, OSError."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(opened, tunnel.request)
    while not tunnel.open:
        tunnel.receive(await loop.sock_recv(opened, READ_BYTES))


async def socket_by(interface: str | None, host: str, port: int) -> socket.socket:
    """Return a connected TCP socket that uses one network interface only (SO_BINDTODEVICE, socket(7)); None: the
    routing table decides.

    Raises `AttemptError` when there is no such interface or the process may not bind to one, OSError as connect(2).
    """
    loop = asyncio.get_running_loop()
    error: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with contextlib.ExitStack() as kept:
            opened = kept.enter_context(socket.socket(family, kind, protocol))
            opened.setblocking(False)
            if interface is not None:
                _bind_to(opened, interface)
            try:
                await loop.sock_connect(opened, address)
            except OSError as why:
                error = why
                continue
            kept.pop_all()
            return opened
    raise error


def _bind_to(opened: socket.socket, interface: str) -> None:
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    except PermissionError:
        raise AttemptError(
            f"this process may not bind a connection to the interface {interface}: give it CAP_NET_RAW "
            "(systemd: AmbientCapabilities=CAP_NET_RAW), or remove `interface`"
        ) from None
    except OSError as error:
        raise AttemptError(f"no network interface {interface}: {error.strerror or error}") from None
