"""Lingering sockets: our end has closed the connection, and the peer may still read the last bytes.

A socket that is closed with unread bytes resets the connection (RFC 9293 section 3.6), and a reset discards the last
bytes at the peer: it would never read the reason. So our half is closed, and incoming bytes are discarded until the
peer closes too (like nginx's `lingering_close`). Only the descriptor and the peer's host remain of the connection.
Lingering sockets give way to connections: both together stay within the connection limit.
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
"""Bytes discarded by one system call."""

DISCARDS_MAX: Final = 4
"""System calls for one socket in one turn of the loop."""

SWEEP_S: Final = 0.5
"""Seconds between two sweeps for sockets that have expired."""


class LingeringSocket(NamedTuple):
    """A lingering socket; times are seconds of the loop's clock."""

    host: str
    """Address of the peer's host."""
    silent_at: float
    """The socket is closed at this time unless bytes arrive before."""
    ends_at: float


class Lingering:
    """Lingering sockets of one loop. If there are too many, the oldest of the host with the most is closed."""

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
        """Take ownership of a non-blocking socket after everything was written. `host`: of its peer."""
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
        """Close sockets beyond `count`: connections need the descriptors."""
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
        """Discard received bytes. Return False when the peer has closed its half, or the connection is broken."""
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
    """Return the lingering sockets of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = Lingering(loop)
    return found
