"""Bounded ring of messages in memory: the newest messages of a log with ``durability: memory``."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.limits import MEMORY_MESSAGE_BYTES
from edge.broker.store.reservation import Reservation
from edge.broker.store.ticket import Ticket


class RingRun(NamedTuple):
    """Run in the ring."""

    stored: Stored
    size: int
    """Bytes of bodies."""
    reservation: Reservation
    """Reservation of the sequences of its address."""

    @property
    def end(self) -> int:
        """Position after its last message."""
        return self.stored.position + len(self.stored.run.bodies)

    @property
    def cost(self) -> int:
        """Approximate bytes of memory."""
        return cost_of(self.size, len(self.stored.run.bodies))


@dataclass(slots=True, eq=False)
class WaitingRuns:
    """Runs that wait for numbers. All of them get numbers together, or are refused together."""

    ticket: Ticket = field(default_factory=Ticket)
    runs: list[tuple[Run, int]] = field(default_factory=list)
    """(run, bytes of bodies)."""
    sealed: bool = False
    """True when a sealed group reserves their numbers. Later runs wait for the next group."""

    @property
    def messages(self) -> dict[str, int]:
        """Count of messages by address."""
        found: dict[str, int] = {}
        for run, _ in self.runs:
            found[run.address] = found.get(run.address, 0) + len(run.bodies)
        return found


@dataclass(slots=True, eq=False)
class MessageRing:
    """Ring of one log. Positions below `start` are on the medium, all later ones are or were in the ring."""

    log: int
    start: int | None = None
    """First position in memory; None while messages appended earlier are still being committed."""
    positions: Reservation = field(default_factory=Reservation)
    addresses: set[str] = field(default_factory=set)
    """Addresses that have sequences reserved for this log."""
    runs: deque[RingRun] = field(default_factory=deque)
    waiting: deque[WaitingRuns] = field(default_factory=deque)
    size: int = 0
    """Bytes of bodies."""
    cost: int = 0
    """Approximate bytes of memory."""
    leaving: bool = False
    """True when the ring is closed. The next group records that the log is kept on the medium."""
    returns: bool = False
    """True when a new ring starts after that commit."""

    @property
    def reserved_end(self) -> int:
        """End of the log in table ``log``."""
        return max(self.start or 0, self.positions.end)

    def add(self, stored: Stored, size: int, reservation: Reservation) -> None:
        """Add a run. Its positions must follow those of the ring."""
        run = RingRun(stored, size, reservation)
        self.runs.append(run)
        reservation.held += 1
        self.size += size
        self.cost += run.cost

    def pop(self) -> RingRun:
        """Remove the oldest run."""
        run = self.runs.popleft()
        run.reservation.held -= 1
        self.size -= run.size
        self.cost -= run.cost
        return run

    def cut(self, room: int) -> bool:
        """Split the oldest run so that its first part has at most `room` bytes. Return False when no message fits."""
        (position, sequence, run), size, reservation = self.runs[0]
        count, first = 0, 0
        while first + len(run.bodies[count]) <= room:
            first += len(run.bodies[count])
            count += 1
        if not count:
            return False
        rest = Stored(position + count, sequence + count, run.part(count, len(run.bodies)))
        self.runs[0] = RingRun(rest, size - first, reservation)
        self.runs.appendleft(RingRun(Stored(position, sequence, run.part(0, count)), first, reservation))
        reservation.held += 1
        return True

    def read(self, position: int, bytes_max: int) -> list[Stored]:
        """Return runs from `position` on: one run, then up to `bytes_max` of bodies."""
        found: list[Stored] = []
        size = 0
        start = max(0, bisect_right(self.runs, position, key=lambda run: run.stored.position) - 1)
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

    def lowest_sequences(self, addresses: set[str]) -> dict[str, int]:
        """Return the oldest sequence in the ring of each of these addresses that has one."""
        found: dict[str, int] = {}
        for stored, _, _ in reversed(self.runs):
            if stored.run.address in addresses:
                found[stored.run.address] = stored.sequence
        return found


def cost_of(size: int, messages: int) -> int:
    """Return the approximate bytes of memory of a run."""
    return size + MEMORY_MESSAGE_BYTES * messages
