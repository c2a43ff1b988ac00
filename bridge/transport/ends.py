"""Connections that are over, and whose protocols are to be told: so many a turn of the loop as there is time for.

To close a socket takes the kernel 0.02 to 0.05 ms, and what a session does at its end takes as long: thousands that
leave together, or are closed to make room, would keep everybody else waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

ENDS_S: Final = 0.001
"""How long they may take in one turn; the one that crosses it is completed. More than accepting has
(`bridge.transport.listening`): where one comes for each that goes, those that go do not pile up."""


class EndingTransport(Protocol):
    """A transport whose connection is over."""

    def end(self, error: Exception | None) -> None:
        """Tell the protocol why, and close the socket."""
        ...


class PendingEnds:
    """Those of one loop, in the order they came."""

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled = False
        self._waiting: deque[tuple[EndingTransport, Exception | None]] = deque()

    def add(self, ending: EndingTransport, error: Exception | None) -> None:
        """It ends in a later turn, as `asyncio.Transport.abort` promises; `error`: why, if not as somebody wanted."""
        self._waiting.append((ending, error))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        until, waiting = time.monotonic() + ENDS_S, self._waiting
        try:
            while waiting:
                ending, error = waiting.popleft()
                ending.end(error)
                if time.monotonic() > until:
                    break
        finally:
            if waiting:
                self._schedule()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, PendingEnds] = WeakKeyDictionary()


def ends_of(loop: asyncio.AbstractEventLoop) -> PendingEnds:
    """Those of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = PendingEnds(loop)
    return found
