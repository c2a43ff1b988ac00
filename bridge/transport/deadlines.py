"""Deadlines of connections, with one timer of the event loop for all of them.

A timer of the loop takes 600 bytes, and a connection with a keep-alive would hold one for its lifetime. Here
connections with nearby deadlines share a slot. A distant deadline is in a slot one second wide before it, and is moved
on when the deadline has changed; only near deadlines are exact to `FINE_S`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import Final, Protocol
from weakref import WeakKeyDictionary

FINE_S: Final = 1 / 32
"""Greatest delay of a call, in seconds."""

COARSE_S: Final = 1.0
"""Width in seconds of the slots for deadlines that are more than two of these away."""

HORIZON_S: Final = 60.0
"""A deadline further away is checked in between, so there are at most 60 coarse slots and 64 fine ones."""


class Watched(Protocol):
    """Object with a deadline."""

    def check_deadline(self) -> None:
        """Check the deadline, in its slot's time. The object has left the slot: call `Deadlines.watch` to wait on."""
        ...


class DeadlineSlot:
    """Objects to check at one time of the loop's clock."""

    __slots__ = ("at", "watched")

    def __init__(self, at: float) -> None:
        self.at = at
        self.watched: set[Watched] = set()


NEVER: Final = DeadlineSlot(math.inf)
"""Slot of objects without a deadline, as opposed to an unknown one. Its `watched` stays empty."""


class Deadlines:
    """Deadlines of one event loop; for use inside it only."""

    def __init__(self) -> None:
        self._slots: dict[float, DeadlineSlot] = {}
        self._order: list[float] = []
        """Times of the slots, a heap."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watched: Watched, deadline: float) -> DeadlineSlot:
        """Call `watched.check_deadline` at `deadline` or before. Leave the slot with `DeadlineSlot.watched.discard`."""
        away = deadline - asyncio.get_running_loop().time()
        if away > 2 * COARSE_S:
            at = math.floor((deadline if away < HORIZON_S else deadline - away + HORIZON_S) / COARSE_S) * COARSE_S
        else:
            at = math.ceil(deadline / FINE_S) * FINE_S
        slot = self._slots.get(at)
        if slot is None:
            slot = self._slots[at] = DeadlineSlot(at)
            heapq.heappush(self._order, at)
            if self._order[0] == at:
                self._arm()
        slot.watched.add(watched)
        return slot

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._order[0], self._fire) if self._order else None

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._order and self._order[0] <= now:
            for watched in self._slots.pop(heapq.heappop(self._order)).watched:
                loop.call_soon(watched.check_deadline)  # so that an exception of one does not affect the others
        self._arm()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines] = WeakKeyDictionary()


def deadlines_of(loop: asyncio.AbstractEventLoop) -> Deadlines:
    """Return the deadlines of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = Deadlines()
    return found
