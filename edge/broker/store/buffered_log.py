"""The end of a log that is in memory only: what came under ``durability: memory`` and is not on the medium.

It holds messages from `first` on, ascending. What every cursor has acknowledged leaves it without ever having been
written. The rest is written when it is spilled (`spiller.Spiller`), as are the numbers it may give out before that.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.message import Stored
from edge.broker.store.limits import MEMORY_MESSAGE_BYTES
from edge.broker.store.reservation import Reservation


class BufferedRun(NamedTuple):
    """A run in memory."""

    stored: Stored
    size: int
    """Bytes of bodies."""
    at_s: float
    """When it came, by the store's clock."""


@dataclass(slots=True, eq=False)
class BufferedLog:
    """See the module's docstring."""

    log: int
    first: int
    """No message from here on is on the medium."""
    written: int
    """Where the last segment of the log ends; 0 when it has none."""
    positions: Reservation = field(default_factory=Reservation)
    addresses: dict[str, Reservation] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    """Addresses that had messages since the last spill."""
    moved: set[int] = field(default_factory=set)
    """Cursors that acknowledged something here since."""
    runs: list[BufferedRun] = field(default_factory=list)
    size: int = 0
    """Bytes of bodies."""
    cost: int = 0
    """Bytes of memory, about."""
    look_at: int = 0
    """`cost` at which it is time to see what can go."""
    changed_at_s: float | None = None
    """The first change since the last spill."""
    idle_at_s: float | None = None
    """When some address may have been idle for long enough to give back its reservation."""
    uncertain: bool = False
    """It takes nothing until it is spilled: a commit failed that had given its next numbers to others."""
    leaving: bool = False
    """It takes no more: spill it, and give back what is reserved."""
    returns: bool = True
    """It takes messages again after that."""

    def add(self, stored: Stored, size: int, at_s: float) -> None:
        """Keep a run whose positions follow on from what is there."""
        self.runs.append(BufferedRun(stored, size, at_s))
        self.size += size
        self.cost += cost_of(size, len(stored.run.bodies))
        self.touched.add(stored.run.address)
        if self.changed_at_s is None:
            self.changed_at_s = at_s

    def drop(self, position: int) -> int:
        """Let go of every run that ends at or below `position`; how much less `cost` is."""
        before, count = self.cost, 0
        for stored, size, _ in self.runs:
            messages = len(stored.run.bodies)
            if stored.position + messages > position:
                break
            count += 1
            self.size -= size
            self.cost -= cost_of(size, messages)
        del self.runs[:count]
        return before - self.cost

    def read(self, position: int, bytes_max: int) -> list[Stored]:
        """Runs from `position` on: one, then up to `bytes_max` of bodies."""
        found: list[Stored] = []
        size = 0
        start = max(0, bisect_right(self.runs, position, key=lambda buffered: buffered.stored.position) - 1)
        for index in range(start, len(self.runs)):
            stored = self.runs[index].stored
            skipped, count = max(0, position - stored.position), len(stored.run.bodies)
            if skipped >= count:
                continue
            size += stored.run.size
            if found and size > bytes_max:
                break
            found.append(Stored(stored.position + skipped, stored.sequence + skipped, stored.run.part(skipped, count)))
        return found


def cost_of(size: int, messages: int) -> int:
    """Bytes of memory of a run, about."""
    return size + MEMORY_MESSAGE_BYTES * messages
