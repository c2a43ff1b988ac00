"""A bounded ring of messages in memory: the newest end of a log with ``durability: memory``."""

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
    """A run in the ring."""

    stored: Stored
    size: int
    """Bytes of bodies."""
    reservation: Reservation
    """The sequences of its address."""

    @property
    def end(self) -> int:
        """The position after its last message."""
        return self.stored.position + len(self.stored.run.bodies)

    @property
    def cost(self) -> int:
        """Bytes of memory, about."""
        return cost_of(self.size, len(self.stored.run.bodies))


@dataclass(slots=True, eq=False)
class WaitingRuns:
    """Runs that wait for numbers. They are named together, or refused together."""

    ticket: Ticket = field(default_factory=Ticket)
    runs: list[tuple[Run, int]] = field(default_factory=list)
    """(run, bytes of bodies)."""
    sealed: bool = False
    """A sealed group reserves numbers for them. Later runs wait for the next group."""

    @property
    def messages(self) -> dict[str, int]:
        """Count of messages by address."""
        found: dict[str, int] = {}
        for run, _ in self.runs:
            found[run.address] = found.get(run.address, 0) + len(run.bodies)
        return found


@dataclass(slots=True, eq=False)
class MessageRing:
    """The messages of one log. Positions below `start` are on the medium. Positions from there on are here, or were."""

    log: int
    start: int | None = None
    """None while messages that were appended earlier are on their way to the medium."""
    positions: Reservation = field(default_factory=Reservation)
    addresses: set[str] = field(default_factory=set)
    """Addresses that have sequences reserved for this log."""
    runs: deque[RingRun] = field(default_factory=deque)
    waiting: deque[WaitingRuns] = field(default_factory=deque)
    size: int = 0
    """Bytes of bodies."""
    cost: int = 0
    """Bytes of memory, about."""
    leaving: bool = False
    """The ring is closed. The next group writes that the log is kept on the medium."""
    returns: bool = False
    """A new ring begins after that commit."""

    @property
    def reserved_end(self) -> int:
        """The end of the log in table ``log``."""
        return max(self.start or 0, self.positions.end)

    def add(self, stored: Stored, size: int, reservation: Reservation) -> None:
        """Keep a run. Its positions follow on from those of the ring."""
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
        """Split the oldest run: its first part has at most `room` bytes. False when its first message is larger."""
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
    """Return about how many bytes of memory a run takes."""
    return size + MEMORY_MESSAGE_BYTES * messages
