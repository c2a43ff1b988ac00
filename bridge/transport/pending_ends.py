"""Ends connections within a time budget for each turn of the loop.

Closing a socket takes the kernel 0.02 to 0.05 ms, and the cleanup of a session takes as long. Thousands of connections
that end together, or are closed to make room, would delay all others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

ENDS_S: Final = 0.001
"""Seconds of one turn; the call that crosses the limit is completed. It is more than accepting gets
(`bridge.transport.listening`), so that ended connections do not pile up when each is replaced by a new one."""


class EndingTransport(Protocol):
    """Transport of a connection that is over."""

    def end(self, error: Exception | None) -> None:
        """Call the protocol's `connection_lost` with this error, and close the socket."""
        ...


class PendingEnds:
    """Ended connections of one loop, in order."""

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled = False
        self._waiting: deque[tuple[EndingTransport, Exception | None]] = deque()

    def add(self, ending: EndingTransport, error: Exception | None) -> None:
        """End a transport in a later turn, as `asyncio.Transport.abort` requires; `error`: None for a requested end."""
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
    """Return the pending ends of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = PendingEnds(loop)
    return found
