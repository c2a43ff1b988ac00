"""Sockets that linger: our side has ended the connection, and the peer may still read our last words.

A socket that is closed with unread bytes resets the connection (RFC 9293 section 3.6), and a reset overtakes what was
written last: the peer would never read why. So our half is closed, and incoming bytes are discarded until the peer
closes too (as nginx's `lingering_close` does). All that remains of the connection is its descriptor and its peer's
host. Lingering sockets give way to connections: both together stay within the connection limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from bridge.limits import LINGER_S, LINGER_SILENCE_S, LINGERING_MAX
from bridge.transport.borrowed import socket_of

DISCARDED_BYTES: Final = 64 * 1024
"""Bytes discarded by one call of the kernel."""

DISCARDS_MAX: Final = 4
"""Calls in one turn of the loop for one socket: others have their turn."""

SWEEP_S: Final = 0.5
"""Seconds between two sweeps for sockets that have expired."""


class LingeringSocket(NamedTuple):
    """A socket that lingers; times are of the loop's clock, in seconds."""

    host: str
    """Address of the peer's host."""
    silent_at: float
    """The socket is closed when nothing has come by then."""
    ends_at: float


class Lingering:
    """The sockets of one loop. Where there are too many, the oldest of the host with most is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sockets: dict[int, LingeringSocket] = {}
        self._by_host: dict[str, dict[int, None]] = {}
        """Descriptors of each host, the oldest first."""
        self._buffer = bytearray(DISCARDED_BYTES)
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, descriptor: int, host: str) -> None:
        """Take ownership of a socket connected with `host` that does not block; everything was written to it."""
        try:
            with socket_of(descriptor) as connection:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            os.close(descriptor)
            return
        if not self._discard(descriptor):
            os.close(descriptor)
            return
        self.keep_at_most(LINGERING_MAX - 1)
        now = self._loop.time()
        self._sockets[descriptor] = LingeringSocket(host, now + LINGER_SILENCE_S, now + LINGER_S)
        self._by_host.setdefault(host, {})[descriptor] = None
        self._loop.add_reader(descriptor, self._ready, descriptor)
        self._sweep_later()

    def keep_at_most(self, count: int) -> None:
        """Close what is more than `count`: connections need the place."""
        while len(self._sockets) > max(count, 0):
            most = max(self._by_host.values(), key=len)
            self._close(next(iter(most)))

    def _ready(self, descriptor: int) -> None:
        if self._discard(descriptor):
            silent_at = self._loop.time() + LINGER_SILENCE_S
            self._sockets[descriptor] = self._sockets[descriptor]._replace(silent_at=silent_at)
        else:
            self._close(descriptor)

    def _discard(self, descriptor: int) -> bool:
        """Discard what has come. Return False when the peer has closed its half, or the connection is broken."""
        for _ in range(DISCARDS_MAX):
            try:
                if not os.readv(descriptor, [self._buffer]):
                    return False
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
        return True

    def _close(self, descriptor: int) -> None:
        host = self._sockets.pop(descriptor).host
        same_host = self._by_host[host]
        del same_host[descriptor]
        if not same_host:
            del self._by_host[host]
        self._loop.remove_reader(descriptor)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def _sweep_later(self) -> None:
        if not self._sweeping and self._sockets:
            self._sweeping = True
            self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now = self._loop.time()
        for descriptor, each in list(self._sockets.items()):
            if now >= min(each.silent_at, each.ends_at):
                self._close(descriptor)
        self._sweep_later()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Lingering] = WeakKeyDictionary()


def lingering_of(loop: asyncio.AbstractEventLoop) -> Lingering:
    """Return the lingering sockets of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = Lingering(loop)
    return found
