"""Reads that take long, one slice a turn of the loop, whosever they are: so nobody waits for more than one of them.

What bytes cost to take differs by a thousand: 256 KiB of small messages take 12 ms, of links to attach half a second. A
driver learns it from its own reads, and takes no more at once than a slice of time allows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.015
"""How long one connection may keep the loop: 256 KiB of small messages fit in."""

SLICE_BYTES_MIN: Final = 512
"""Smallest slice: what it brings to completion costs what it costs."""

SLICE_BYTES_FIRST: Final = 8 * 1024
"""Of a connection nobody knows yet: CONNECT, or SASL and a few links."""

SLICE_BYTES_MAX: Final = 1024 * 1024
"""Larger than any read: taken as it comes."""


class Sliced(Protocol):
    """A driver with bytes it has not taken."""

    def take_slice(self) -> bool:
        """Take a slice; False when nothing is left. What fails ends the connection, and is not raised."""
        ...


class SlowLane:
    """Drivers that have more to take than a slice, served in turns."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Sliced] = deque()

    def add(self, driver: Sliced) -> None:
        """It takes its next slice when those before it have taken theirs."""
        self._waiting.append(driver)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """One slice, then everybody else has a turn."""
        driver = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        if driver.take_slice():
            self.add(driver)


def slice_after(size: int, slice_bytes: int, took_s: float) -> int:
    """How much to take at once, after `size` bytes took so long."""
    if took_s > SLICE_S:
        return max(int(min(size, slice_bytes) * SLICE_S / took_s), SLICE_BYTES_MIN)
    if took_s < SLICE_S / 4 and 2 * size >= slice_bytes:
        return min(2 * slice_bytes, SLICE_BYTES_MAX)
    return slice_bytes


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SlowLane] = WeakKeyDictionary()


def slow_lane_of(loop: asyncio.AbstractEventLoop) -> SlowLane:
    """The lane of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = SlowLane(loop)
    return found
