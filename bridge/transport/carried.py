"""Bytes that the TCP connections of a loop have carried since it began, as the kernel counted them.

Sockets are read and written in several places, some of them in C, and the kernel counts there already (tcp(7),
TCP_INFO). So a connection costs one question when it ends; those that are open are asked in turns, a part in each.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from bridge.transport.borrowed import socket_of

_KNOWS: Final = sys.platform == "linux"

_INFO: Final = struct.Struct("<128xQ64xQQ")
"""Part of struct tcp_info (linux/tcp.h): tcpi_bytes_received, tcpi_bytes_sent, tcpi_bytes_retrans; since Linux 4.19."""

ASKED_AT_ONCE: Final = 500
"""Sockets that are asked in one step: 1.5 ms."""


class SocketBytes(NamedTuple):
    """Bytes of one connection or of several; zeros where the kernel does not say."""

    received: int = 0
    sent: int = 0


class CarriedBytes:
    """Bytes of the connections of one loop."""

    __slots__ = ("_ended", "_next", "_open", "_sampled", "total")

    def __init__(self) -> None:
        self.total = SocketBytes()
        """Bytes at the last time that all connections were asked. It never falls."""
        self._ended = SocketBytes()
        """Bytes of connections that are over."""
        self._open = bytearray()
        """1 by descriptor: a connection has it. A byte for each, as there are thousands."""
        self._next = 0
        """The descriptor that is asked next."""
        self._sampled: dict[int, SocketBytes] = {}
        """Answers of this round by descriptor."""

    def opened(self, descriptor: int) -> None:
        """A connection has this descriptor."""
        beyond = descriptor + 1 - len(self._open)
        if beyond > 0:
            self._open.extend(bytes(beyond))
        self._open[descriptor] = 1

    def ended(self, descriptor: int) -> None:
        """Count a connection that is over; its socket is still open."""
        self._open[descriptor] = 0
        self._sampled.pop(descriptor, None)
        self._ended = _sum(self._ended, bytes_of(descriptor))

    def ask_some(self) -> None:
        """Ask some connections that are open; with the last of them `total` is of now."""
        for _ in range(ASKED_AT_ONCE):
            found = self._open.find(1, self._next)
            if found < 0:
                total = self._ended
                for each in self._sampled.values():
                    total = _sum(total, each)
                self.total, self._next = total, 0
                self._sampled.clear()
                return
            self._sampled[found] = bytes_of(found)
            self._next = found + 1


def bytes_of(descriptor: int) -> SocketBytes:
    """Return what a connection has carried; zeros where it is not TCP, or the kernel does not say."""
    if not _KNOWS:
        return SocketBytes()
    try:
        with socket_of(descriptor) as connection:
            received, sent, again = _INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    except (OSError, struct.error):
        return SocketBytes()
    return SocketBytes(received, sent - again)


def _sum(one: SocketBytes, other: SocketBytes) -> SocketBytes:
    return SocketBytes(one.received + other.received, one.sent + other.sent)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, CarriedBytes] = WeakKeyDictionary()


def carried_of(loop: asyncio.AbstractEventLoop) -> CarriedBytes:
    """Return the count of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = CarriedBytes()
    return found
