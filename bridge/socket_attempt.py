"""Connection attempt of a dialer over a socket, with an `AmqpConnection`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bridge.amqp_connection import AmqpConnection, LinkDown, LinkUp
from bridge.connecting import connect
from bridge.dialer import Attempt, AttemptError, Dialer, PeerEndpoint
from bridge.enrolment import ALPN
from bridge.limits import DIALED_UNREAD_BYTES_MAX
from bridge.proxy import Proxy
from bridge.tls_refusal import refusal
from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver

if TYPE_CHECKING:
    from bridge.transport.websocket import WebSocketClient


class SocketAttempt(Attempt):
    """One connection over a socket; the owner of its driver's events."""

    def __init__(
        self,
        dialer: Dialer,
        endpoint: PeerEndpoint,
        connection: AmqpConnection,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        interface: str | None = None,
        proxy: Proxy | None = None,
        timeout_s: float = 10.0,
        write_bytes_max: int = 1 << 20,
    ) -> None:
        """`tls` creates the context for an endpoint with TLS, and may raise OSError. `interface`: name of the network
        interface to use; `proxy`: the proxy on the way to the endpoint.

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
        self._tls = tls if endpoint.tls else None
        self._interface = interface
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._write_bytes_max = write_bytes_max
        self._driver: ConnectionDriver | None = None
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
            self._close_protocol(self._driver, reason)
        elif not self._gone.done():
            self._gone.set_result(None)  # not connected yet, so there is nothing to close

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
                self._dialer.down(self._aborted or event.reason, event.wait_s)

    def writable(self) -> None:
        """Do nothing: the windows of the links bound what is written, so nothing waits for this."""

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _aborted(self) -> str:
        """Reason why this end dropped the connection; empty when it did not."""
        lost = self._driver.lost if self._driver is not None else None
        return str(lost) if isinstance(lost, ConnectionAbortedError) else ""

    async def _open(self) -> None:
        endpoint = self._endpoint
        tls = self._tls() if self._tls is not None else None
        if tls is not None and self._frames is not None:
            tls.set_alpn_protocols([ALPN])  # a hub also speaks AMQP without WebSocket on this port
        await connect(
            self._make_driver, endpoint.host, endpoint.port, tls=tls, interface=self._interface, proxy=self._proxy
        )

    def _make_driver(self) -> ConnectionDriver:
        connection = self._connection if self._frames is None else self._frames
        self._driver = ConnectionDriver(
            connection,
            self._own,
            write_bytes_max=self._write_bytes_max,
            unread_bytes_max=DIALED_UNREAD_BYTES_MAX,
            dialed=True,
            gone=self._left,
        )
        self._connection.driven_by(self._driver)
        return self._driver

    def _own(self, driver: ConnectionDriver) -> SocketAttempt:
        self._opened = True
        if self._ended is not None:
            self._close_protocol(driver, self._ended)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._check_up)
        return self

    def _check_up(self) -> None:
        if not self.up and self._driver is not None:
            self._close_protocol(self._driver, f"no link in {self._timeout_s:g} s")

    def _close_protocol(self, driver: ConnectionDriver, reason: str) -> None:
        if self._frames is not None and not self._frames.opened:
            self._frames.fail(reason)  # the inner machine cannot send its close before the handshake
        else:
            self._connection.close(reason)
        driver.flush_soon()

    def _left(self, driver: ConnectionDriver) -> None:
        if not self._gone.done():
            self._gone.set_result(None)


def framed(connection: ConnectionMachine, endpoint: PeerEndpoint) -> WebSocketClient:
    """Wrap a machine that speaks AMQP in WebSocket frames for this endpoint (AMQP's WebSocket binding). The library is
    loaded on first use: it takes 1 MiB."""
    from bridge.transport.websocket import AMQP, WebSocketClient  # noqa: PLC0415 - see above

    return WebSocketClient(connection, AMQP[0], host=endpoint.authority, path=endpoint.path or "/")
