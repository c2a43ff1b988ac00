"""Slow lane: connections with more work than one slice of time. They share one slice in each turn of the loop, in
order, so that other connections never wait longer than that.

The cost of handling bytes varies by a factor of 1 000: 256 KiB of small messages take 12 ms, of subscription filters
some seconds. So the lane shares time, and a machine reports when it has more work
(`bridge.transport.connection.ConnectionMachine.more`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from bridge.transport.turn import turn_of

SLICE_S: Final = 0.002
"""Seconds that one connection may keep the loop, and the same for all connections of the lane together. An idle
turn takes 0.05 ms, a usual round trip of a message with its commit 1 ms. The call that crosses the limit is
completed."""

TURN_S: Final = 0.005
"""Seconds of one turn for work that any number of peers can cause at once: large reads, reads of unauthenticated peers,
ends of connections. Work beyond it waits in the lane."""

LARGE_BYTES: Final = 2 * 1024
"""Smallest size of a large read; smaller ones are a few messages and are handled at once."""


class Sliced(Protocol):
    """Driver with more work."""

    def take_slice(self) -> bool:
        """Work for one slice; return False when nothing is left. An error ends the connection and is not raised."""
        ...


class SlowLane:
    """Drivers with more work than one slice, served in turns. Their output is written after that of others
    (`bridge.transport.turn`)."""

    __slots__ = ("_loop", "_scheduled", "_spent_s", "_turn", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = turn_of(loop)
        self._waiting: deque[Sliced] = deque()
        self._scheduled = False
        self._spent_s = 0.0
        """Used part of `TURN_S` in this turn."""

    @property
    def waiting(self) -> int:
        """Number of waiting drivers."""
        return len(self._waiting)

    @property
    def has_time(self) -> bool:
        """True while part of `TURN_S` is left in this turn."""
        return self._spent_s < TURN_S

    def spend(self, took_s: float) -> None:
        """Use part of `TURN_S`."""
        if not self._spent_s:
            self._loop.call_soon(self._next_turn)
        self._spent_s += took_s

    def add(self, driver: Sliced) -> None:
        """Add a driver at the end of the lane."""
        self._waiting.append(driver)
        self._schedule()

    def _next_turn(self) -> None:
        self._spent_s = 0.0

    def _next(self) -> None:
        """Serve one slice, of one driver or as many as fit in it; then all other connections have a turn."""
        self._scheduled = False
        until = self._loop.time() + SLICE_S
        waiting = self._waiting
        self._turn.unhurried = True
        try:
            for _ in range(len(waiting)):
                driver = waiting.popleft()
                if driver.take_slice():
                    waiting.append(driver)
                if self._loop.time() > until:
                    break
        finally:
            self._turn.unhurried = False
        if waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SlowLane] = WeakKeyDictionary()


def slow_lane_of(loop: asyncio.AbstractEventLoop) -> SlowLane:
    """Return the lane of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = SlowLane(loop)
    return found
