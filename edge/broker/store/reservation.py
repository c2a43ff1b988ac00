"""Numbers reserved ahead of what is given out, so that no crash makes a store give one twice.

Messages of a log that is kept in memory are never written, and their positions and sequences are given to no others.
What the medium says of a counter is therefore ahead of it: numbers below a reservation's `end` may be given out, and
are never given out again, whatever becomes of the process. Small state of kind `MEMORY` says from where on numbers are
only reserved.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge.broker.store.limits import MEMORY_RESERVE_LEFT, StoreLimits

MEMORY: Final = "memory"
"""Kind of the small state that says what is reserved and, as reason in the ledger, what was lost of it."""

SPILLS: Final = "spills"
"""Kind of the small state that counts the commits which reserved numbers or gave some back, in one row. The name is
from the time when such logs spilled over to the medium."""
SPILLS_KEY: Final = "count"
SPILLS_LOG: Final = 0
"""Stands for that count where ends of logs are told: numbers beyond what a copy of the store has reserved are given
only after another such commit, so it tells a copy from the store where the end of a log is reserved ahead. No log has
this number."""

_SPAN: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<Q")


class ReservedRange(NamedTuple):
    """Numbers ``base <= n < end`` may have been given to messages that were in memory only.

    They are positions of a log, or sequences of one address in it. What is below `base` is on the medium, or is
    pending for no consumer group.
    """

    log: int
    address: str | None
    """None: positions."""
    base: int
    end: int


def range_key(log: int, address: str | None) -> str:
    """Key of the row of small state for a `ReservedRange`."""
    return str(log) if address is None else f"{log} {address}"


def pack_range(base: int, end: int) -> bytes:
    """Value of that row."""
    return _SPAN.pack(base, end)


def unpack_range(key: str, value: bytes) -> ReservedRange:
    """Raises ValueError for what `range_key` and `pack_range` did not make."""
    log, space, address = key.partition(" ")
    try:
        base, end = _SPAN.unpack(value)
    except struct.error as error:
        raise ValueError(f"reservation {key!r} is damaged: {error}") from error
    return ReservedRange(int(log), address if space else None, base, end)


def pack_count(count: int) -> bytes:
    """Value of the row of kind `SPILLS`."""
    return _COUNT.pack(count)


def unpack_count(value: bytes) -> int:
    """0 for a rotten one: a hub that knows of more takes the store for a copy, and it goes on under a new epoch."""
    return int(_COUNT.unpack(value)[0]) if len(value) == _COUNT.size else 0


@dataclass(slots=True)
class Reservation:
    """Reserved positions of one log, or reserved sequences of one address."""

    end: int = 0
    """Numbers below it may be given out."""
    start: int = 0
    """The next number when they were reserved."""
    low: int = 0
    """From here on it is time to reserve more."""
    at_s: float = 0.0
    """When they were reserved."""
    logs: tuple[int, ...] = ()
    """Logs in memory that may use them; nearly always one."""
    held: int = 0
    """Runs in rings that have some of these numbers."""
    seen: int = -1
    """The next number at the last look for idle addresses."""

    def cut(self, following: int) -> None:
        """End the reservation at the next number."""
        self.end = self.low = following

    def extend(self, following: int, end: int, now: float) -> None:
        """Use numbers below `end`, which are reserved on the medium. `following` was the next number at that time."""
        left = int((end - following) * MEMORY_RESERVE_LEFT)
        self.start, self.end, self.low, self.at_s = following, end, end - left, now

    def next_end(self, following: int, needed: int, now: float, limits: StoreLimits) -> int:
        """Return the new end. `following` is the next number; `needed` numbers are used at once.

        The rest lasts about `StoreLimits.memory_reserve_s` at the rate since the last reservation. The new end is never
        below the old one, as a failed commit may be found on the medium all the same.
        """
        used = following + needed - self.start if self.end else needed
        wanted = int(used / max(now - self.at_s, 1e-3) * limits.memory_reserve_s) if self.end else 0
        size = max(limits.memory_reserve_min, min(wanted, 8 * used, limits.memory_reserve_max))
        return max(self.end, following + needed + size)
