"""The asyncio shell that keeps an uplink up: several endpoints in order of preference, for ever, with backoff.

It knows sockets, time and when to try again, and nothing of what is said over the connection but that it came up
(`LinkUp`) or is over (`LinkDown`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from bridge.backoff import Backoff
from bridge.gateway_link import LinkDown, LinkUp
from bridge.transport.connection import Connection
from bridge.transport.driver import Driver

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
"""How long `close` waits for a peer's good-bye before it drops the socket."""


class Endpoint(NamedTuple):
    """Where a peer listens."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """``amqp://host[:port]`` or ``amqps://host[:port]``. Raises `ValueError` for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"not an endpoint: {url!r} (amqp://host:port or amqps://host:port)")
        tls = parts.scheme == "amqps"
        return cls(parts.hostname, parts.port or (5671 if tls else 5672), tls)


class LinkState(msgspec.Struct, frozen=True):
    """What a person wants to know about an uplink. Times are seconds since 1970."""

    connected: bool
    paused: bool
    endpoint: str | None
    """Where it is connected to, or tries to."""
    peer: str | None
    """Container-id of the peer while connected."""
    batching: bool
    since: float
    """When `connected` last changed."""
    last_error: str | None
    attempts: int
    """Attempts since it was last connected."""
    refused: bool = False
    """Somebody answered the last attempt, and did not take the link."""


class DialedConnection(Connection, Protocol):
    """A connection the dialer can also end in good order."""

    def close(self, reason: str) -> None: ...


class Dialer:
    """Keeps one connection to one of several endpoints. `start` it inside a running loop."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        connect: Callable[[Endpoint], DialedConnection],
        *,
        backoff: Backoff,
        bind: Callable[[Callable[[], None]], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
        connect_timeout_s: float = 10.0,
        write_bytes_max: int = 1 << 20,
        changed: Callable[[LinkState], None] | None = None,
    ) -> None:
        """`connect` makes the machine for an attempt; `bind` is given what the machines call to get their bytes out.

        `tls` makes the context for an attempt at an amqps endpoint, and may raise OSError.
        `connect_timeout_s`: from the attempt to the socket, and again from the socket to `LinkUp`. `changed` is told
        every new state.
        """
        if not endpoints:
            raise ValueError("an uplink needs an endpoint")
        if tls is None and any(endpoint.tls for endpoint in endpoints):
            raise ValueError("an amqps endpoint needs a TLS context")
        self._endpoints = list(endpoints)
        self._connect = connect
        self._bind = bind
        self._backoff = backoff
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._write_bytes_max = write_bytes_max
        self._changed = changed
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._nudge = asyncio.Event()
        self._attempt: _Attempt | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = LinkState(False, False, None, None, False, time.time(), None, 0)

    @property
    def state(self) -> LinkState:
        return self._state

    def start(self) -> None:
        """Begin; idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dialer")

    def pause(self) -> None:
        """Cut the uplink and leave it cut until `resume`."""
        self._wanted.clear()
        self._nudge.set()
        self._update(paused=True)
        if self._attempt is not None:
            self._attempt.end("paused")

    def resume(self) -> None:
        """Try again, now."""
        self._backoff.reset()
        self._update(paused=False)
        self._wanted.set()
        self._nudge.set()

    async def close(self) -> None:
        """End the connection in good order and stop."""
        self._wanted.clear()
        self._nudge.set()
        task, self._task = self._task, None
        if self._attempt is not None:
            self._attempt.end("shutting down")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._attempt.gone)
            if self._attempt is not None:
                self._attempt.abort()
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # --- inside -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            self._nudge.clear()
            for endpoint in self._endpoints:
                stood = await self._try(endpoint)
                if stood or not self._wanted.is_set():
                    break
            if self._wanted.is_set():
                wait_s = self._backoff.failed(loop.time())
                log.info("no uplink: %s; next attempt in %.1f s", self._state.last_error, wait_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # not wait_for, which in Python 3.11 can swallow a cancellation
                        await self._nudge.wait()

    async def _try(self, endpoint: Endpoint) -> bool:
        """One attempt, to its end; returns whether the link came up in it."""
        self._update(endpoint=str(endpoint), attempts=self._state.attempts + 1)
        try:
            attempt = _Attempt(self, self._connect(endpoint), self._connect_timeout_s)
        except Exception as error:  # a fault of ours or of the configuration must not end the dialling in silence
            log.exception("cannot make a connection to %s", endpoint)
            self._update(last_error=f"{endpoint}: {error}")
            return False
        self._attempt = attempt
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: attempt.driver(self._bind, self._write_bytes_max),
                    endpoint.host,
                    endpoint.port,
                    ssl=self._tls() if endpoint.tls and self._tls is not None else None,
                )
            await attempt.gone
        except TimeoutError:
            self._update(last_error=f"{endpoint}: no answer in {self._connect_timeout_s:g} s", refused=False)
        except OSError as error:
            refused = isinstance(error, ssl.SSLError)
            self._update(last_error=f"{endpoint}: {error.strerror or error}", refused=refused)
        finally:
            attempt.abort()
            self._attempt = None
        return attempt.up

    def _up(self, event: LinkUp) -> None:
        self._backoff.connected(asyncio.get_running_loop().time())
        log.info("uplink to %s at %s, %s", event.peer, self._state.endpoint, "batches" if event.batching else "plain")
        self._update(
            connected=True, peer=event.peer, batching=event.batching, last_error=None, attempts=0, refused=False
        )

    def _down(self, reason: str) -> None:
        error = f"{self._state.endpoint}: {reason}"
        refused = not self._state.connected
        self._update(connected=False, peer=None, batching=False, last_error=error, refused=refused)

    def _update(self, **fields: Any) -> None:
        state = msgspec.structs.replace(self._state, **fields)
        if state.connected != self._state.connected:
            state = msgspec.structs.replace(state, since=time.time())
        if state != self._state:
            self._state = state
            if self._changed is not None:
                self._changed(state)


class _Attempt:
    """One connection from the first packet to the last; the owner of its driver."""

    def __init__(self, dialer: Dialer, connection: DialedConnection, up_timeout_s: float) -> None:
        self.up = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialer = dialer
        self._connection = connection
        self._driver: Driver | None = None
        self._up_timeout_s = up_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._ended: str | None = None

    def driver(self, bind: Callable[[Callable[[], None]], None], write_bytes_max: int) -> Driver:
        driver = Driver(self._connection, self._own, write_bytes_max=write_bytes_max, gone=self._gone)
        self._driver = driver
        bind(driver.flush_soon)
        return driver

    def end(self, reason: str) -> None:
        """Say good-bye; an attempt whose socket is not there yet ends as soon as it is."""
        self._ended = reason
        if self._driver is not None:
            self._connection.close(reason)
            self._driver.flush_soon()

    def abort(self) -> None:
        """Drop the socket, and do not stay in the way of the next attempt."""
        if self._timer is not None:
            self._timer.cancel()
        if self._driver is not None:
            self._driver.abort()

    # --- the driver's owner -----------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, LinkUp):
                self.up = True
                self._dialer._up(event)
            elif isinstance(event, LinkDown):
                self._dialer._down(event.reason)

    def writable(self) -> None:
        """The uplink's window bounds what is written; there is nothing to take up again."""

    def _own(self, driver: Driver) -> _Attempt:
        if self._ended is not None:
            self._connection.close(self._ended)
        self._timer = asyncio.get_running_loop().call_later(self._up_timeout_s, self._check_up)
        return self

    def _check_up(self) -> None:
        if not self.up and self._driver is not None:
            self._connection.close(f"no link in {self._up_timeout_s:g} s")
            self._driver.flush_soon()

    def _gone(self, driver: Driver) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
