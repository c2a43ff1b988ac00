"""Network backend of httpcore on our own transports (`bridge.connecting`).

httpcore's backend decrypts up to 64 KiB at once, without a time limit: 64 KiB of TLS key updates take 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import httpcore
import httpx

from bridge.connecting import Streams, socket_to, streams_over
from bridge.dialer import AttemptError

CONNECTIONS_MAX: Final = 2
"""Connections at a time: requests are sequential, and an earlier connection may be closing."""


Connect = Callable[[str, int], Awaitable[socket.socket]]
"""Returns a socket that is connected to a host and port. Raises OSError, `AttemptError`."""


def transport(context: ssl.SSLContext | None, connect: Connect = socket_to) -> httpx.AsyncHTTPTransport:
    """Return a transport for `httpx.AsyncClient`; `context` None: without TLS."""
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without one, httpx loads the system's authorities
    made = httpx.AsyncHTTPTransport(verify=context or unused, trust_env=False)
    made._pool = httpcore.AsyncConnectionPool(  # httpx has no option for a network backend
        ssl_context=context or unused,
        max_connections=CONNECTIONS_MAX,
        network_backend=HttpNetwork(secure=context is not None, connect=connect),
    )
    return made


class HttpNetwork(httpcore.AsyncNetworkBackend):
    """Connections to one server."""

    def __init__(self, *, secure: bool, connect: Connect = socket_to) -> None:
        """`secure`: TLS starts with the first byte."""
        self._secure = secure
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        async with _httpcore_errors(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
            opened = await self._connect(host, port)
            return PlainStream(opened) if self._secure else HttpStream(await streams_over(opened))


class PlainStream(httpcore.AsyncNetworkStream):
    """Connected socket before its TLS handshake."""

    def __init__(self, opened: socket.socket) -> None:
        self._opened = opened

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        async with _httpcore_errors(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
            return HttpStream(await streams_over(self._opened, ssl_context, server_hostname or ""))

    async def aclose(self) -> None:
        self._opened.close()


class HttpStream(httpcore.AsyncNetworkStream):
    """Open connection, with TLS or without."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        async with _httpcore_errors(timeout, httpcore.ReadTimeout, httpcore.ReadError):
            return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        async with _httpcore_errors(timeout, httpcore.WriteTimeout, httpcore.WriteError):
            self._writer.write(buffer)
            await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # an idle connection that was closed, or has unexpected bytes
            return self._reader.at_eof() or bool(self._reader._buffer)  # type: ignore[attr-defined]
        return self._writer.get_extra_info(info)


@contextlib.asynccontextmanager
async def _httpcore_errors(
    timeout_s: float | None, too_late: type[Exception], failed: type[Exception]
) -> AsyncIterator[None]:
    """Translate errors to those of httpcore."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise too_late(str(error)) from error
    except (OSError, AttemptError) as error:
        raise failed(str(error)) from error
