"""When connections are to be looked at: one timer of the event loop for all of them.

A timer of the loop takes 600 bytes, and a connection with a keep alive would hold one all its life. Here connections
whose looks fall together share a slot. A deadline far off is looked at in a slot a second wide that comes before it,
and put off again where it has moved; only the last stretch is kept to `FINE_S`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import Final, Protocol
from weakref import WeakKeyDictionary

FINE_S: Final = 1 / 32
"""A look comes at most this late."""

COARSE_S: Final = 1.0
"""Width of the slots of deadlines that are more than two of these away."""

HORIZON_S: Final = 60.0
"""A deadline further off is looked at in between: so there are at most 60 coarse slots and 64 fine ones."""


class Watched(Protocol):
    """Somebody with a deadline."""

    def look(self) -> None:
        """The slot has come. It is left: `Deadlines.watch` again where there is still something to wait for."""
        ...


class DeadlineSlot:
    """Whom to look at, and when by the loop's clock."""

    __slots__ = ("at", "watched")

    def __init__(self, at: float) -> None:
        self.at = at
        self.watched: set[Watched] = set()


NEVER: Final = DeadlineSlot(math.inf)
"""Whose is in it has no deadline, which is not the same as not knowing of one. Nobody stands in its `watched`."""


class Deadlines:
    """The deadlines of one event loop; used inside it only."""

    def __init__(self) -> None:
        self._slots: dict[float, DeadlineSlot] = {}
        self._order: list[float] = []
        """The times of the slots, a heap."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watched: Watched, deadline: float) -> DeadlineSlot:
        """Call `watched.look` at `deadline` or before. Leave the slot with `DeadlineSlot.watched.discard`."""
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
                loop.call_soon(watched.look)  # a fault of one is not in the way of the others
        self._arm()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines] = WeakKeyDictionary()


def deadlines_of(loop: asyncio.AbstractEventLoop) -> Deadlines:
    """The deadlines of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = Deadlines()
    return found
