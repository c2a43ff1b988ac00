"""The end of a log that is in memory only: what was taken under ``durability: memory`` and is not on the medium.

A tail holds messages from `first` on, ascending. What every cursor has acknowledged leaves it without ever having been
written. The rest is written when it is *settled* (`tails.Tails`), as are the numbers it may give out before that:
positions below `end`, and sequences of each address below that address's `Reservation.end`. Numbers that were reserved
are never given out again, whatever becomes of the process.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.message import Stored
from edge.broker.store.limits import MEMORY_MESSAGE_BYTES, MEMORY_RESERVE_LEFT, Limits

MEMORY: Final = "memory"
"""Kind of the small state that says what was reserved and, as reason in the ledger, what was lost of it."""

_SPAN: Final = struct.Struct("<QQ")


class Mark(NamedTuple):
    """Numbers ``base <= n < end`` may have been given to messages that were in memory only.

    They are positions of a log, or sequences of one address in it. What is below `base` is on the medium, or was
    acknowledged by everybody.
    """

    log: int
    address: str | None
    """None: positions."""
    base: int
    end: int


def mark_key(log: int, address: str | None) -> str:
    """Key of the row of small state for a `Mark`."""
    return str(log) if address is None else f"{log} {address}"


def pack_mark(base: int, end: int) -> bytes:
    """Value of that row."""
    return _SPAN.pack(base, end)


def unpack_mark(key: str, value: bytes) -> Mark:
    """Raises ValueError for what `mark_key` and `pack_mark` did not make."""
    log, space, address = key.partition(" ")
    try:
        base, end = _SPAN.unpack(value)
    except struct.error as error:
        raise ValueError(f"reservation {key!r} is damaged: {error}") from error
    return Mark(int(log), address if space else None, base, end)


class Taken(NamedTuple):
    """A run in memory."""

    stored: Stored
    size: int
    """Bytes of bodies."""
    at_s: float
    """When it was taken, by the store's clock."""


@dataclass(slots=True)
class Block:
    """Numbers reserved ahead: those below `end` may be given out."""

    end: int = 0
    start: int = 0
    """Where the block began."""
    low: int = 0
    """From here on it is time to reserve more."""
    at_s: float = 0.0
    """When it was reserved."""
    used_at_s: float = 0.0
    """The last time settling found that some had been used."""

    def reserved(self, following: int, end: int, now: float) -> None:
        """Numbers below `end` are reserved on the medium, `following` was the next one at that time."""
        self.used_at_s = now
        if end > self.end:
            left = int((end - following) * MEMORY_RESERVE_LEFT)
            self.start, self.end, self.low, self.at_s = following, end, end - left, now

    def next_end(self, following: int, now: float, limits: Limits) -> int:
        """Where the block is to end from now on, `following` being the next number to be given out.

        It lasts about `Limits.memory_reserve_s` at the rate seen since it was made.
        """
        if not self.end:
            return following + limits.memory_reserve_min
        used = following - self.start
        wanted = int(used / max(now - self.at_s, 1e-3) * limits.memory_reserve_s)
        size = max(limits.memory_reserve_min, min(wanted, 8 * used, limits.memory_reserve_max))
        return following + size if following >= self.low else self.end


@dataclass(slots=True, eq=False)
class Tail:
    """See the module's docstring."""

    log: int
    first: int
    """No message from here on is on the medium."""
    written: int
    """Where the last segment of the log ends; 0 when it has none."""
    block: Block = field(default_factory=Block)
    """Positions."""
    addresses: dict[str, Block] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    """Addresses that took messages since it was settled."""
    moved: set[int] = field(default_factory=set)
    """Cursors that acknowledged something here since."""
    taken: list[Taken] = field(default_factory=list)
    size: int = 0
    """Bytes of bodies."""
    cost: int = 0
    """Bytes of memory, about."""
    look_at: int = 0
    """`cost` at which it is time to see what can go."""
    changed_at_s: float | None = None
    """The first change since it was settled."""
    idle_at_s: float | None = None
    """When some address may have been idle for long enough to give back its reservation."""
    doubtful: bool = False
    """It takes nothing until it is settled: a commit failed that had given its next numbers to others."""
    leaving: bool = False
    """It takes no more: settle it, and give back what is reserved."""
    stays: bool = True
    """It takes messages again after that."""

    def add(self, stored: Stored, size: int, at_s: float) -> None:
        """Take a run whose positions follow on from what was taken before."""
        self.taken.append(Taken(stored, size, at_s))
        self.size += size
        self.cost += cost_of(size, len(stored.run.bodies))
        self.touched.add(stored.run.address)
        if self.changed_at_s is None:
            self.changed_at_s = at_s

    def drop(self, position: int) -> None:
        """Let go of every run that ends at or below `position`."""
        count = 0
        for stored, size, _ in self.taken:
            messages = len(stored.run.bodies)
            if stored.position + messages > position:
                break
            count += 1
            self.size -= size
            self.cost -= cost_of(size, messages)
        del self.taken[:count]

    def read(self, position: int, bytes_max: int) -> list[Stored]:
        """Runs from `position` on: one, then up to `bytes_max` of bodies."""
        found: list[Stored] = []
        size = 0
        start = max(0, bisect_right(self.taken, position, key=lambda taken: taken.stored.position) - 1)
        for index in range(start, len(self.taken)):
            stored = self.taken[index].stored
            skipped, count = max(0, position - stored.position), len(stored.run.bodies)
            if skipped >= count:
                continue
            size += stored.run.size
            if found and size > bytes_max:
                break
            found.append(Stored(stored.position + skipped, stored.sequence + skipped, stored.run.part(skipped, count)))
        return found


class Settlement(NamedTuple):
    """What a group settles of one log."""

    log: int
    runs: Sequence[Stored]
    """What is written of the tail."""
    size: int
    """Bytes of their bodies."""
    start: int
    """The position from which this group's segments have to cover the log, so that none is missing."""
    tail_end: int
    """Where the tail ends; what the group appends to the log besides comes after."""
    upto: int
    """Every position below is on the medium after it, or nobody's."""
    following: int
    """The next position to be given out."""
    writes: bool
    """The group has messages of this log."""
    first: int | None
    """The first position kept from now on, when there is no other segment; None: as it was."""
    end: int
    """Where the positions reserved end."""
    ends: Mapping[str, int]
    """Where the reservation of an address ends that has one from now on."""
    counters: Mapping[str, int]
    """The next sequence of each address touched, and of those that give back their reservation."""
    bases: Mapping[str, int]
    """For each of `ends`: below it, every sequence is on the medium after it, or nobody's."""
    gone: Sequence[str]
    """Addresses whose reservation is given back."""
    at_s: float
    released: bool = False
    """It gives back everything that was reserved."""
    extends: bool = False
    """It reserves more and does nothing else."""

    def marks(self) -> Iterator[tuple[str, bytes | None]]:
        """(key, value) of its rows of small state; None: the row goes."""
        yield mark_key(self.log, None), pack_mark(self.upto, self.end)
        for address, end in self.ends.items():
            yield mark_key(self.log, address), pack_mark(self.bases[address], end)
        for address in self.gone:
            yield mark_key(self.log, address), None


def cost_of(size: int, messages: int) -> int:
    """Bytes of memory of a run, about."""
    return size + MEMORY_MESSAGE_BYTES * messages
