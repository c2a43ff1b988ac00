"""Sockets that are ready, so many a turn of the loop as there is time for.

An event loop hands over all sockets that are ready in one pass, at some microseconds each even where the read is put
off: thousands that one peer opens keep everybody else waiting. Here the kernel keeps the list of them (epoll(7)), and
the loop is told once a turn that there are some. Who is not served stays in the list and costs nothing; who is goes to
its end where there is more to read, so everybody has a turn.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import select
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from bridge.transport.turn import turn_of

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

KNOWN_S: Final = 0.0015
"""How long sockets of peers that have said who they are may be served in one turn, whatever they bring. The one that
crosses it is completed."""

KNOWN_EACH_S: Final = 0.00002
"""So much longer for each that was served: a small message takes less. Many of those go on for `KNOWN_S_MAX`, as what
is done once a turn is done for all of them; what takes longer has shorter turns."""

KNOWN_S_MAX: Final = 0.005
"""The longest turn."""

UNKNOWN_S: Final = 0.0005
"""The same of peers that have not: anybody can open as many as there are places for. What a turn does besides takes
0.05 ms, so nine parts of ten of the time are theirs when there is nothing else to do."""

KNOWN_BYTES: Final = 256 * 1024
"""Received at most in one turn of one socket: what is done with it is bounded by time (`bridge.transport.driver`)."""

UNKNOWN_BYTES: Final = 16 * 1024
"""The same of peers that have not said who they are: what each takes is to be small against `UNKNOWN_S`."""

AT_ONCE: Final = 64
"""Asked of the kernel at once."""

FEW_AT_ONCE: Final = 4
"""The same where each may take long."""


received: Final = memoryview(mmap.mmap(-1, KNOWN_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
"""What is received stands here until it is copied, in the size it has. Its pages are there from the first read on that
reaches them, and most are short."""


class Served(Protocol):
    """Whose socket it is."""

    def ready(self, events: int) -> None:
        """The socket is ready, as epoll(7) says, or was a moment ago. What fails ends its connection, and is not
        raised."""
        ...


class Ready:
    """Sockets of one kind; used inside the loop only. There is a descriptor of ours while there is one of theirs."""

    __slots__ = (
        "_each_s", "_epoll", "_found", "_share_s", "_share_s_max", "_sockets", "_turn", "_unhurried", "_watched",
        "buffers", "loop",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        share_s: float,
        received_bytes_max: int,
        *,
        each_s: float = 0.0,
        share_s_max: float = math.inf,
        unhurried: bool = False,
    ) -> None:
        """`share_s` of each turn are theirs, and `each_s` more for each that is served, up to `share_s_max`; and so
        many bytes each. `unhurried`: what they have to write is written after the others' (`bridge.transport.turn`)."""
        self.loop: Final = loop
        self.buffers: Final = [received[:received_bytes_max]]
        """What one of them may receive in a turn, for `os.readv`."""
        self._turn = turn_of(loop)
        self._share_s = share_s
        self._each_s = each_s
        self._share_s_max = share_s_max
        self._unhurried = unhurried
        self._epoll: select.epoll | None = None
        self._sockets: list[Served | None] = []
        """By descriptor: the kernel gives the lowest that is free."""
        self._watched = 0
        """How many there are."""
        self._found: list[tuple[int, int]] = []
        """Those the kernel has named and there was no time for, the next one last."""

    def watch(self, descriptor: int, served: Served, before: int, after: int) -> None:
        """Serve it at these events, and no more at those of `before`; 0 for none, then errors are not told either."""
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

    def _put(self, descriptor: int, served: Served) -> None:
        beyond = descriptor + 1 - len(self._sockets)
        if beyond > 0:
            self._sockets.extend([None] * beyond)
        self._sockets[descriptor] = served

    def __contains__(self, descriptor: int) -> bool:
        """It is watched."""
        return 0 <= descriptor < len(self._sockets) and self._sockets[descriptor] is not None

    def _serve(self) -> None:
        self._turn.unhurried = self._unhurried
        try:
            self._serve_some(time.monotonic())
        finally:
            self._turn.unhurried = False

    def _serve_some(self, now: float) -> None:
        """Those that are ready, each once if at all, while there is time."""
        last = False
        until_s, until_s_max = now + self._share_s, now + self._share_s_max
        for _ in range(self._watched):
            if not self._found:
                if last or self._epoll is None:
                    return
                self._found = self._epoll.poll(0, AT_ONCE)
                self._found.reverse()
                last = len(self._found) < AT_ONCE
                if not self._found:
                    return
            descriptor, events = self._found.pop()
            served = self._sockets[descriptor] if descriptor < len(self._sockets) else None
            if served is not None:  # none where another one's turn has ended it
                served.ready(events)
            until_s += self._each_s
            if time.monotonic() > min(until_s, until_s_max):
                return


class Together:
    """Sockets of one kind that somebody serves many at once; used inside the loop only. There is a descriptor of ours
    from the first of theirs until `close`."""

    __slots__ = ("_at_once", "_descriptors", "_epoll", "_loop", "_serve")

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Callable[[Sequence[int]], None]) -> None:
        """`serve` is called with the descriptors of those that are readable, or were a moment ago."""
        self._loop = loop
        self._serve = serve
        self._epoll: select.epoll | None = None
        self._descriptors: set[int] = set()
        self._at_once = FEW_AT_ONCE

    def __contains__(self, descriptor: int) -> bool:
        """It is watched."""
        return descriptor in self._descriptors

    def __len__(self) -> int:
        """Sockets that are watched."""
        return len(self._descriptors)

    def watch(self, descriptor: int) -> None:
        """Serve it when it is readable. Idempotent."""
        if descriptor in self._descriptors:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        self._epoll.register(descriptor, READABLE)
        self._descriptors.add(descriptor)

    def leave(self, descriptor: int) -> None:
        """Serve it no more. Idempotent; to be called before it is closed."""
        if self._epoll is not None and descriptor in self._descriptors:
            self._descriptors.discard(descriptor)
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Serve nothing more."""
        self._descriptors.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        """As many as there is time for, the others in the next turn: the kernel names those first that were served
        longest ago. After some that took long few are served at once, as nobody looks at the clock in between."""
        now = time.monotonic()
        until_s, until_s_max = now + KNOWN_S, now + KNOWN_S_MAX
        for _ in range(len(self._descriptors)):
            if self._epoll is None:
                return
            asked = self._at_once
            found = self._epoll.poll(0, asked)
            begun = time.monotonic()
            self._serve([descriptor for descriptor, _ in found if descriptor in self._descriptors])
            now = time.monotonic()
            self._at_once = FEW_AT_ONCE if now - begun > KNOWN_S else min(2 * asked, AT_ONCE)
            until_s += len(found) * KNOWN_EACH_S
            if len(found) < asked or now > min(until_s, until_s_max):
                return


class Kinds:
    """The sockets of one loop by what is known of their peers."""

    __slots__ = ("known", "unknown")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.known: Final = Ready(loop, KNOWN_S, KNOWN_BYTES, each_s=KNOWN_EACH_S, share_s_max=KNOWN_S_MAX)
        self.unknown: Final = Ready(loop, UNKNOWN_S, UNKNOWN_BYTES, unhurried=True)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Kinds] = WeakKeyDictionary()


def kinds_of(loop: asyncio.AbstractEventLoop) -> Kinds:
    """The sockets of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = Kinds(loop)
    return found
