"""Sockets that are ready, served within a budget of time for each turn of the event loop.

An event loop calls a reader for every ready socket in one pass. That takes some microseconds each, even if the read is
put off, so thousands of sockets of one attacker delay all other clients. Here the kernel keeps the list of ready
sockets (epoll(7)), and the loop calls us once a turn while the list has entries. A socket that is not served stays in
the list at no cost; a served one goes to the end of the list if more can be read, so every socket has its turn.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import select
import time
from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from bridge.native import functions as native
from bridge.transport.byte_counter import ByteCounter
from bridge.transport.turn import turn_of

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

KNOWN_S: Final = 0.0015
"""Seconds of one turn for sockets of authenticated peers. The read that crosses the limit is completed."""

KNOWN_EACH_S: Final = 0.00002
"""Seconds added for each socket that was served: a small message takes less. A turn with many small messages may take
`KNOWN_S_MAX`, because the work done once a turn serves all of them."""

KNOWN_S_MAX: Final = 0.005
"""Seconds of the longest turn."""

UNKNOWN_S: Final = 0.0005
"""Seconds of one turn for sockets of unauthenticated peers, as anybody may open any number of them. The rest of a turn
takes 0.05 ms, so an idle loop gives them nine tenths of its time."""

KNOWN_BYTES: Final = 256 * 1024
"""Bytes received at most from one socket in a turn. The work on them is bounded by time (`bridge.transport.driver`)."""

UNKNOWN_BYTES: Final = 16 * 1024
"""Bytes received at most from one socket of an unauthenticated peer in a turn: much less work than `UNKNOWN_S`."""

AT_ONCE: Final = 32
"""Sockets received from in one call, while each takes little time."""

FEW_AT_ONCE: Final = 4
"""Sockets received from in one call, if each may take long: the clock is read after each call."""

BUFFER_BYTES: Final = 512 * 1024
"""Bytes received in one call from all its sockets. The pages are allocated by the first read that reaches them."""


class ReadySocket(Protocol):
    """The owner of a socket. An error ends its connection, and is not raised."""

    @property
    def reads(self) -> bool:
        """True while it wants incoming bytes."""
        ...

    def writable(self) -> None:
        """Send more: the socket accepts bytes, or is broken."""
        ...

    def received(self, brought: bytes | int) -> None:
        """Handle incoming bytes (empty at the end of the peer's stream), or an error number."""
        ...


class Ready:
    """Sockets that share one budget of time; for use inside the loop. Has an epoll descriptor while it has sockets."""

    __slots__ = (
        "_at_once", "_at_once_max", "_buffer", "_each_max", "_each_s", "_epoll", "_share_s", "_share_s_max", "_sockets",
        "_turn", "_unhurried", "_watched", "counter", "loop",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        counter: ByteCounter,
        buffer: memoryview,
        share_s: float,
        received_bytes_max: int,
        *,
        at_once: int = FEW_AT_ONCE,
        each_s: float = 0.0,
        share_s_max: float = math.inf,
        unhurried: bool = False,
    ) -> None:
        """`share_s`: seconds of each turn, with `each_s` more for each socket that was served, up to `share_s_max`.
        `received_bytes_max`: bytes of one socket in a turn. `buffer`: holds incoming bytes until they are copied.
        `at_once`: sockets in one call. `unhurried`: output that follows from these reads is written after all other
        output of the turn (`bridge.transport.turn`)."""
        self.loop: Final = loop
        self.counter: Final = counter
        """Counts the bytes of its sockets."""
        self._buffer = buffer
        self._each_max = received_bytes_max
        self._turn = turn_of(loop)
        self._share_s = share_s
        self._each_s = each_s
        self._share_s_max = share_s_max
        self._at_once_max = at_once
        self._at_once = FEW_AT_ONCE
        self._unhurried = unhurried
        self._epoll: select.epoll | None = None
        self._sockets: list[ReadySocket | None] = []
        """Indexed by descriptor: the kernel assigns the lowest free number."""
        self._watched = 0
        """Number of sockets."""

    def watch(self, descriptor: int, served: ReadySocket, before: int, after: int) -> None:
        """Change the events of a socket from `before` to `after`. 0: no event, not even an error."""
        if before == after:
            return
        epoll = self._epoll
        if epoll is None:
            epoll = self._epoll = select.epoll()
            self.loop.add_reader(epoll.fileno(), self._serve)
        if not before:
            epoll.register(descriptor, after)
            self._put(descriptor, served)
            self._watched += 1
        elif after:
            epoll.modify(descriptor, after)
        else:
            self._sockets[descriptor] = None
            self._watched -= 1
            epoll.unregister(descriptor)
            if not self._watched:
                self._sockets.clear()
                self.loop.remove_reader(epoll.fileno())
                epoll.close()
                self._epoll = None

    def _put(self, descriptor: int, served: ReadySocket) -> None:
        beyond = descriptor + 1 - len(self._sockets)
        if beyond > 0:
            self._sockets.extend([None] * beyond)
        self._sockets[descriptor] = served

    def __contains__(self, descriptor: int) -> bool:
        """Return whether this descriptor has events."""
        return self._served(descriptor) is not None

    def _served(self, descriptor: int) -> ReadySocket | None:
        return self._sockets[descriptor] if 0 <= descriptor < len(self._sockets) else None

    def _serve(self) -> None:
        self._turn.unhurried = self._unhurried
        try:
            self._serve_some(time.monotonic())
        finally:
            self._turn.unhurried = False

    def _serve_some(self, now: float) -> None:
        """Serve ready sockets while there is time, each at most once. The kernel names those first that were served
        longest ago. After a slow call the next one serves few."""
        until_s, until_s_max = now + self._share_s, now + self._share_s_max
        left = self._watched
        while left > 0 and self._epoll is not None:
            asked = min(self._at_once, left)
            found = self._epoll.poll(0, asked)
            self._serve_each(found)
            begun, now = now, time.monotonic()
            self._at_once = FEW_AT_ONCE if now - begun > self._share_s else min(2 * self._at_once, self._at_once_max)
            left -= len(found)
            until_s += len(found) * self._each_s
            if len(found) < asked or now > min(until_s, until_s_max):
                return

    def _serve_each(self, found: Sequence[tuple[int, int]]) -> None:
        for descriptor, events in found:
            if events & ~READABLE and (served := self._served(descriptor)) is not None:
                served.writable()
        readable: list[int] = []
        readers: list[ReadySocket] = []
        for descriptor, events in found:
            if events & ~WRITABLE and (served := self._served(descriptor)) is not None and served.reads:
                readable.append(descriptor)
                readers.append(served)
        if readable:
            everything = native.tcp_receive(readable, self._buffer, self._each_max)
            for served, brought in zip(readers, everything, strict=True):
                if brought is not None:
                    served.received(brought)


class LoopSockets:
    """The sockets of one loop, in two groups with budgets of their own."""

    __slots__ = ("counter", "known", "unknown")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.counter: Final = ByteCounter()
        """Bytes of both groups."""
        buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.known: Final = Ready(
            loop,
            self.counter,
            buffer,
            KNOWN_S,
            KNOWN_BYTES,
            at_once=AT_ONCE,
            each_s=KNOWN_EACH_S,
            share_s_max=KNOWN_S_MAX,
        )
        self.unknown: Final = Ready(loop, self.counter, buffer, UNKNOWN_S, UNKNOWN_BYTES, unhurried=True)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopSockets] = WeakKeyDictionary()


def sockets_of(loop: asyncio.AbstractEventLoop) -> LoopSockets:
    """Return the sockets of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = LoopSockets(loop)
    return found
