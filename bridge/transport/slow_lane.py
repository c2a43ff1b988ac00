"""Connections that have more to take than a slice of time: one slice of them all a turn of the loop, in the order they
came, so that nobody waits for more than that.

What bytes cost to take differs by a thousand: 256 KiB of small messages take 12 ms, of filters to subscribe to some
seconds. So it is time that is shared out, and a machine says when it has more
(`bridge.transport.connection.ConnectionMachine.more`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from bridge.transport.turn import turn_of

SLICE_S: Final = 0.002
"""How long one connection may keep the loop before others have their turn, and how long all those that wait for theirs:
a turn without anything to do takes 0.05 ms, a usual round trip of a message with its commit 1 ms. The call that crosses
it is completed."""

TURN_S: Final = 0.005
"""How long may take in one turn what any number of peers can bring at once: large reads, reads of peers that have not
said who they are, ends of connections. What is beyond it waits in the lane."""

LARGE_BYTES: Final = 2 * 1024
"""A read of more is a large one: smaller ones are a few messages, and are taken as they come."""


class Sliced(Protocol):
    """A driver with more to take."""

    def take_slice(self) -> bool:
        """Take a slice; False when nothing is left. What fails ends the connection, and is not raised."""
        ...


class SlowLane:
    """Drivers that have more to take than a slice, served in turns. What they have to write then is written after the
    others' (`bridge.transport.turn`)."""

    __slots__ = ("_loop", "_scheduled", "_spent_s", "_turn", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = turn_of(loop)
        self._waiting: deque[Sliced] = deque()
        self._scheduled = False
        self._spent_s = 0.0
        """Of `TURN_S`, in this turn."""

    @property
    def waiting(self) -> int:
        """How many there are."""
        return len(self._waiting)

    @property
    def has_time(self) -> bool:
        """There is some of `TURN_S` left in this turn."""
        return self._spent_s < TURN_S

    def spend(self, took_s: float) -> None:
        """So much of `TURN_S` is used."""
        if not self._spent_s:
            self._loop.call_soon(self._next_turn)
        self._spent_s += took_s

    def add(self, driver: Sliced) -> None:
        """It takes its next slice when those before it have taken theirs."""
        self._waiting.append(driver)
        self._schedule()

    def _next_turn(self) -> None:
        self._spent_s = 0.0

    def _next(self) -> None:
        """A slice, of one or as many as fit in it; then everybody else has a turn."""
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
    """The lane of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = SlowLane(loop)
    return found
