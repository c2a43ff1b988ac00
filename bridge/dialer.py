"""Dialer: asyncio shell that keeps a connector connected. It tries endpoints in order of preference
(`bridge.endpoint_order`), with backoff, until it is closed.

The dialer decides when to try again. An `Attempt` makes one connection: over a socket with a protocol machine
(`bridge.socket_attempt`), or with a library's client (`bridge.client_attempt`).
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
from bridge.endpoint_order import EndpointOrder
from bridge.resources.endpoint import authority
from bridge.tls_refusal import refusal

log = logging.getLogger(__name__)

_EVENT: Final = {"event": "link"}
"""``extra`` of log lines that the journal of a node has too."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds that `close` waits for an orderly end before it drops the socket; it includes `LEAVE_TIMEOUT_S`."""


class PeerEndpoint(NamedTuple):
    """Address and protocol of a listening peer."""

    host: str
    port: int
    tls: bool = False
    scheme: str = "amqp"
    """URL scheme of the protocol without TLS."""
    path: str | None = None
    """Path of AMQP over WebSocket (subprotocol `amqp`); None: plain AMQP."""

    def __str__(self) -> str:
        scheme = self.scheme if self.path is None else "ws"
        return f"{scheme}{'s' if self.tls else ''}://{self.authority}{self.path or ''}"

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return authority(self.host, self.port)

    @classmethod
    def parse(cls, url: str) -> PeerEndpoint:
        """Parse ``amqp://host[:port]`` or ``amqps://host[:port]``. Raises `ValueError` for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"not an endpoint: {url!r} (amqp://host:port or amqps://host:port)")
        tls = parts.scheme == "amqps"
        return cls(parts.hostname, parts.port or (5671 if tls else 5672), tls)


class LinkState(msgspec.Struct, frozen=True):
    """State of a link for operators. Times are seconds since 1970."""

    connected: bool
    paused: bool
    endpoint: str | None
    """Endpoint of the connection or of the latest attempt."""
    peer: str | None
    """Container-id of the peer while connected."""
    batching: bool
    since: float
    """Time of the last change of `connected`."""
    last_error: str | None
    attempts: int
    """Attempts since it was last connected."""
    refused: bool = False
    """True when the last attempt reached a peer, which refused the link."""
    ended: str | None = None
    """Reason for the end of the last established connection; kept while the next one is up."""
    ended_at: float = 0.0


class AttemptError(Exception):
    """The attempt failed or the connection ended; the text is for operators."""

    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        """`wait_s`: minimum time until the next attempt, requested by the peer."""
        super().__init__(text)
        self.wait_s = wait_s


class Attempt(Protocol):
    """One connection, from the first packet to the last; it calls its dialer's `up` and `down`."""

    up: bool
    """True once the connection was established."""

    @property
    def gone(self) -> asyncio.Future[None]:
        """Future that is done when the connection is completely closed."""
        ...

    async def run(self) -> None:
        """Run the connection to its end. Raises TimeoutError when no peer answered, OSError or `AttemptError` with the
        failure."""
        ...

    def end(self, reason: str) -> None:
        """Close in order: settle received messages (`bridge.forwarders.inbox`), then close the protocol. An attempt
        that is still connecting ends as soon as it is connected."""
        ...

    def abort(self) -> None:
        """Drop the connection at once. Idempotent."""
        ...


class Dialer:
    """Keeps one connection to one of several endpoints. `start` it inside a running loop."""

    def __init__(
        self,
        endpoints: Sequence[PeerEndpoint],
        attempt: Callable[[Dialer, PeerEndpoint], Attempt],
        *,
        backoff: Backoff,
        changed: Callable[[LinkState], None] | None = None,
        stamps: Callable[[], object] = lambda: None,
    ) -> None:
        """`endpoints`: the first is preferred. `attempt` creates an attempt for an endpoint. `changed` is called with
        every new state. `stamps` returns a value that changes when files that an attempt reads are replaced."""
        self._endpoints = EndpointOrder(endpoints)
        self._make_attempt = attempt
        self._backoff = backoff
        self._changed = changed
        self._read_stamps = stamps
        self._stamps = stamps()
        """File stamps at the last check, or at the start of the latest round of attempts."""
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._nudge = asyncio.Event()
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[None] | None = None
        self._predecessor: Dialer | None = None
        self._over = False
        self._requested_wait_s = 0.0
        """Longest wait in seconds that a peer requested in this round of attempts."""
        self._state = LinkState(False, False, None, None, False, time.time(), None, 0)

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def closed(self) -> bool:
        """True after `close` has finished."""
        return self._over

    def start(self, predecessor: Dialer | None = None) -> None:
        """Start dialling; idempotent. `predecessor`: the dialer of the same connector's previous configuration; it is
        closed before this one connects."""
        if self._task is None:
            self._predecessor = predecessor
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dialer")

    def pause(self) -> None:
        """Disconnect, and stay disconnected until `resume`."""
        self._wanted.clear()
        self._nudge.set()
        self._update(paused=True)
        if self._attempt is not None:
            self._attempt.end("paused")

    def resume(self) -> None:
        """End a pause, and connect now unless connected."""
        self._update(paused=False)
        self._wanted.set()
        if not self._state.connected:
            self._try_again()

    def check_files(self) -> None:
        """Try again now after files that an attempt reads were replaced. An open connection stays open. Call this every
        few seconds."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        if not self._state.connected:
            log.info("certificate or key was replaced: trying again")
            self._try_again()

    def renew(self, reason: str) -> None:
        """Close the connection or attempt in order, and connect again after the backoff."""
        if self._attempt is not None:
            self._attempt.end(reason)

    async def close(self) -> None:
        """Close the connection in order and stop. It may be called more than once."""
        self._wanted.clear()
        self._nudge.set()
        if self._attempt is not None:
            self._attempt.end("shutting down")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._attempt.gone)
            if self._attempt is not None:
                self._attempt.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))  # a caller that is cancelled here may call `close` again
        await self._close_predecessor()
        self._over = True

    # --- from the attempt -------------------------------------------------------------------------------------

    def up(self, peer: str, *, batching: bool = False) -> None:
        """Record that the connection is up and the peer accepts messages."""
        self._backoff.connected(asyncio.get_running_loop().time())
        self._nudge.clear()  # this attempt also serves the requests made while it ran
        how = "batches" if batching else "plain"
        log.info("connected to %s at %s, %s", peer, self._state.endpoint, how, extra=_EVENT)
        self._update(connected=True, peer=peer, batching=batching, last_error=None, attempts=0, refused=False)

    def down(self, reason: str, wait_s: float = 0.0) -> None:
        """Record that the connection ended or failed. `wait_s`: minimum time until the next attempt."""
        self._requested_wait_s = max(self._requested_wait_s, wait_s)
        error = f"{self._state.endpoint}: {reason}"
        refused = not self._state.connected
        ended = {"ended": reason, "ended_at": time.time()}
        self._update(connected=False, peer=None, batching=False, last_error=error, refused=refused, **ended)

    # --- inside -----------------------------------------------------------------------------------------------

    def _try_again(self) -> None:
        self._backoff.reset()
        self._endpoints.reset()
        self._nudge.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await self._close_predecessor()
        while True:
            await self._wanted.wait()
            self._nudge.clear()
            self._stamps = self._read_stamps()
            self._requested_wait_s = 0.0
            for endpoint in self._endpoints.order(loop.time()):
                was_up = await self._try(endpoint)
                if was_up:
                    self._endpoints.connected(endpoint)
                if was_up or not self._wanted.is_set():
                    break
                self._endpoints.failed(endpoint, loop.time())
            if self._wanted.is_set():
                wait_s = max(self._backoff.failed(loop.time()), self._requested_wait_s)
                extra = _EVENT if was_up else None  # the first of many attempts
                log.info("not connected: %s; next attempt in %.1f s", self._state.last_error, wait_s, extra=extra)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # not wait_for, which in Python 3.11 can swallow a cancellation
                        await self._nudge.wait()

    async def _close_predecessor(self) -> None:
        if self._predecessor is not None:
            await self._predecessor.close()
            self._predecessor = None

    async def _try(self, endpoint: PeerEndpoint) -> bool:
        """Run one attempt to its end; return True when the connection came up."""
        self._update(endpoint=str(endpoint), attempts=self._state.attempts + 1)
        try:
            attempt = self._make_attempt(self, endpoint)
        except Exception as error:  # a bug or a bad configuration must not stop the dialer
            log.exception("unexpected error, no connection to %s", endpoint)
            self._update(last_error=f"{endpoint}: {error}")
            return False
        self._attempt = attempt
        try:
            await attempt.run()
        except TimeoutError as error:
            self._update(last_error=f"{endpoint}: {error or 'no answer in time'}", refused=False)
        except OSError as error:
            refused, why = isinstance(error, ssl.SSLError), refusal(error) or error.strerror or error
            self._update(last_error=f"{endpoint}: {why}", refused=refused)
        except AttemptError as error:
            self._requested_wait_s = max(self._requested_wait_s, error.wait_s)
            self._update(last_error=f"{endpoint}: {error}", refused=True)
        finally:
            attempt.abort()
            self._attempt = None
        return attempt.up

    def _update(self, **fields: Any) -> None:
        state = msgspec.structs.replace(self._state, **fields)
        if state.connected != self._state.connected:
            state = msgspec.structs.replace(state, since=time.time())
        if state != self._state:
            self._state = state
            if self._changed is not None:
                self._changed(state)
