"""An attempt of a dialer at a socket, with a protocol machine of ours behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from bridge.dialer import Attempt, AttemptError, Dialer, Endpoint
from bridge.enrolment import ALPN
from bridge.gateway_link import LinkDown, LinkUp
from bridge.proxy import Proxy, ProxyError, Tunnel
from bridge.tls_refusal import refusal
from bridge.transport.connection import Connection
from bridge.transport.driver import Driver

if TYPE_CHECKING:
    from bridge.transport.websocket import WebSocketClient

READ_BYTES: Final = 4_096
"""Of a proxy's answer at a time."""


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
        proxy: Proxy | None = None,
        timeout_s: float = 10.0,
        write_bytes_max: int = 1 << 20,
    ) -> None:
        """`bind` is given the driver, which the machine asks to get its bytes out. `tls` makes the context for an
        endpoint with TLS, and may raise OSError. `interface`: name of the network interface to leave by; `proxy`: what
        the endpoint is reached through.

        `timeout_s`: from the attempt to the socket, and again from the socket to `LinkUp`.
        """
        if endpoint.tls and tls is None:
            raise ValueError("an endpoint with TLS needs a TLS context")
        self.up = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialer = dialer
        self._endpoint = endpoint
        self._connection = connection
        self._frames = framed(connection, endpoint) if endpoint.path is not None else None
        self._bind = bind
        self._tls = tls if endpoint.tls else None
        self._interface = interface
        self._proxy = proxy
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
        if self._frames is not None and self._frames.refused and self._ended is None:
            why = self._frames.refused
        if why is not None:
            raise AttemptError(why)

    def end(self, reason: str) -> None:
        self._ended = reason
        if self._driver is not None and self._opened:
            self._say_good_bye(self._driver, reason)
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
                self._dialer.down(event.reason, event.wait_s)

    def writable(self) -> None:
        """The window of what is under way bounds what is written; there is nothing to take up again."""

    # --- inside -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        tls = self._tls() if self._tls is not None else None
        if tls is not None and self._frames is not None:
            tls.set_alpn_protocols([ALPN])  # a hub speaks AMQP without frames too, on the same port
        if self._interface is None and self._proxy is None:
            await loop.create_connection(self._make_driver, endpoint.host, endpoint.port, ssl=tls)
            return
        opened = await socket_to(endpoint.host, endpoint.port, self._interface, self._proxy)
        try:
            name = endpoint.host if tls is not None else None
            await loop.create_connection(self._make_driver, sock=opened, ssl=tls, server_hostname=name)
        except BaseException:
            opened.close()
            raise

    def _make_driver(self) -> Driver:
        connection = self._connection if self._frames is None else self._frames
        self._driver = Driver(connection, self._own, write_bytes_max=self._write_bytes_max, gone=self._left)
        self._bind(self._driver)
        return self._driver

    def _own(self, driver: Driver) -> SocketAttempt:
        self._opened = True
        if self._ended is not None:
            self._say_good_bye(driver, self._ended)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._check_up)
        return self

    def _check_up(self) -> None:
        if not self.up and self._driver is not None:
            self._say_good_bye(self._driver, f"no link in {self._timeout_s:g} s")

    def _say_good_bye(self, driver: Driver, reason: str) -> None:
        if self._frames is not None and not self._frames.opened:
            self._frames.give_up(reason)  # nothing of what the machine inside says would leave
        else:
            self._connection.close(reason)
        driver.flush_soon()

    def _left(self, driver: Driver) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


def framed(connection: Connection, endpoint: Endpoint) -> WebSocketClient:
    """A machine that speaks AMQP, in frames as the endpoint wants them (AMQP's WebSocket binding). The library is
    loaded with the first: it takes 1 MiB."""
    from bridge.transport.websocket import AMQP, WebSocketClient  # noqa: PLC0415 - see above

    return WebSocketClient(connection, AMQP[0], host=endpoint.authority, path=endpoint.path or "/")


async def socket_to(host: str, port: int, interface: str | None = None, proxy: Proxy | None = None) -> socket.socket:
    """A connected TCP socket: `socket_by`, through a proxy where there is one. Raises `AttemptError`, which names a
    proxy that does not let us through, and OSError as connect(2)."""
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
    """Raises `ProxyError`, OSError."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(opened, tunnel.request)
    while not tunnel.open:
        tunnel.receive(await loop.sock_recv(opened, READ_BYTES))


async def socket_by(interface: str | None, host: str, port: int) -> socket.socket:
    """A connected TCP socket that leaves by one network interface and no other (SO_BINDTODEVICE, socket(7)); None: as
    the routes say.

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
            f"this process may not bind a connection to the interface {interface}: it needs CAP_NET_RAW "
            "(systemd: AmbientCapabilities=CAP_NET_RAW), or leave `interface` out"
        ) from None
    except OSError as error:
        raise AttemptError(f"no network interface {interface}: {error.strerror or error}") from None
