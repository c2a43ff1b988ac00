"""An attempt of a dialer at a socket, with a protocol machine of ours behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bridge.dialer import Attempt, AttemptError, Dialer, Endpoint
from bridge.gateway_link import LinkDown, LinkUp
from bridge.tls_refusal import refusal
from bridge.transport.connection import Connection
from bridge.transport.driver import Driver


class DialedConnection(Connection, Protocol):
    """A connection the dialer can also end in good order; its events are `LinkUp` and `LinkDown`."""

    def close(self, reason: str) -> None: ...


class SocketAttempt(Attempt):
    """One connection over a socket; the owner of its driver."""

    def __init__(
        self,
        dialer: Dialer,
        endpoint: Endpoint,
        connection: DialedConnection,
        bind: Callable[[Driver], None],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        interface: str | None = None,
        timeout_s: float = 10.0,
        write_bytes_max: int = 1 << 20,
    ) -> None:
        """`bind` is given the driver, which the machine asks to get its bytes out. `tls` makes the context for an amqps
        endpoint, and may raise OSError. `interface`: name of the network interface to leave by.

        `timeout_s`: from the attempt to the socket, and again from the socket to `LinkUp`.
        """
        if endpoint.tls and tls is None:
            raise ValueError("an amqps endpoint needs a TLS context")
        self.up = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialer = dialer
        self._endpoint = endpoint
        self._connection = connection
        self._bind = bind
        self._tls = tls if endpoint.tls else None
        self._interface = interface
        self._timeout_s = timeout_s
        self._write_bytes_max = write_bytes_max
        self._driver: Driver | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended: str | None = None
        self._opened = False

    # --- from the dialer --------------------------------------------------------------------------------------

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._gone

    async def run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._open()
        except TimeoutError:
            raise TimeoutError(f"no answer in {self._timeout_s:g} s") from None
        await self._gone
        why = refusal(self._driver.lost) if self._driver is not None and not self.up else None
        if why is not None:
            raise AttemptError(why)

    def end(self, reason: str) -> None:
        self._ended = reason
        if self._driver is not None and self._opened:
            self._connection.close(reason)
            self._driver.flush_soon()
        elif not self._gone.done():
            self._gone.set_result(None)  # there is nobody to say good-bye to yet

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            self._driver.abort()

    # --- the driver's owner -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, LinkUp):
                self.up = True
                self._dialer.up(event.peer, batching=event.batching)
            elif isinstance(event, LinkDown):
                self._dialer.down(event.reason)

    def writable(self) -> None:
        """The window of what is under way bounds what is written; there is nothing to take up again."""

    # --- inside -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        tls = self._tls() if self._tls is not None else None
        if self._interface is None:
            await loop.create_connection(self._make_driver, endpoint.host, endpoint.port, ssl=tls)
            return
        opened = await socket_by(self._interface, endpoint.host, endpoint.port)
        try:
            name = endpoint.host if tls is not None else None
            await loop.create_connection(self._make_driver, sock=opened, ssl=tls, server_hostname=name)
        except BaseException:
            opened.close()
            raise

    def _make_driver(self) -> Driver:
        self._driver = Driver(self._connection, self._own, write_bytes_max=self._write_bytes_max, gone=self._left)
        self._bind(self._driver)
        return self._driver

    def _own(self, driver: Driver) -> SocketAttempt:
        self._opened = True
        if self._ended is not None:
            self._connection.close(self._ended)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._check_up)
        return self

    def _check_up(self) -> None:
        if not self.up and self._driver is not None:
            self._connection.close(f"no link in {self._timeout_s:g} s")
            self._driver.flush_soon()

    def _left(self, driver: Driver) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


async def socket_by(interface: str, host: str, port: int) -> socket.socket:
    """A connected TCP socket that leaves by one network interface and no other (SO_BINDTODEVICE, socket(7)).

    Raises `AttemptError` when there is no such interface or the process may not bind to one, OSError as connect(2).
    """
    loop = asyncio.get_running_loop()
    error: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with contextlib.ExitStack() as kept:
            opened = kept.enter_context(socket.socket(family, kind, protocol))
            opened.setblocking(False)
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
            f"this process may not bind a connection to the interface {interface}: it needs CAP_NET_RAW "
            "(systemd: AmbientCapabilities=CAP_NET_RAW), or leave `interface` out"
        ) from None
    except OSError as error:
        raise AttemptError(f"no network interface {interface}: {error.strerror or error}") from None
