"""Numbers reserved ahead of what is given out, so that no crash makes a store give one twice.

Messages of a log that is kept in memory get their positions and sequences before anything is written. What the medium
says of a counter is therefore ahead of it: numbers below a reservation's `end` may be given out, and are never given
out again, whatever becomes of the process. Small state of kind `MEMORY` says from where on numbers are only reserved.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge.broker.store.limits import MEMORY_RESERVE_LEFT, Limits

MEMORY: Final = "memory"
"""Kind of the small state that says what was reserved and, as reason in the ledger, what was lost of it."""

SPILLS: Final = "spills"
"""Kind of the small state that counts the commits which spilled a log or reserved more for it, in one row."""
SPILLS_KEY: Final = "count"
SPILLS_LOG: Final = 0
"""Stands for that count where ends of logs are told: numbers beyond what a copy of the store has reserved are given
only after another such commit, so it tells a copy from the store where the end of a log is reserved ahead. No log has
this number."""

_SPAN: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<Q")


class ReservedRange(NamedTuple):
    """Numbers ``base <= n < end`` may have been given to messages that were in memory only.

    They are positions of a log, or sequences of one address in it. What is below `base` is on the medium, or was
    acknowledged by everybody.
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
    """Of the positions of one log, or of the sequences of one address."""

    end: int = 0
    """Numbers below it may be given out."""
    start: int = 0
    """The next number when they were reserved."""
    low: int = 0
    """From here on it is time to reserve more."""
    at_s: float = 0.0
    """When they were reserved."""
    used_at_s: float = 0.0
    """The last time a spill found that some had been used."""

    def cut(self, end: int) -> None:
        """Numbers from `end` on are given out no more: a commit begins that reserves less, and if it fails it may be
        found on the medium all the same."""
        self.end, self.low = min(self.end, end), min(self.low, end)

    def extend(self, following: int, end: int, now: float) -> None:
        """Numbers below `end` are reserved on the medium, `following` was the next one at that time."""
        self.used_at_s = now
        if end > self.end or following >= self.low:
            left = int((end - following) * MEMORY_RESERVE_LEFT)
            self.start, self.end, self.low, self.at_s = following, end, end - left, now

    def next_end(self, following: int, now: float, limits: Limits) -> int:
        """Where the reservation is to end from now on, `following` being the next number to be given out.

        It lasts about `Limits.memory_reserve_s` at the rate seen since it was made: after a burst it ends earlier.
        """
        if not self.end:
            return following + limits.memory_reserve_min
        used = following - self.start
        wanted = int(used / max(now - self.at_s, 1e-3) * limits.memory_reserve_s)
        size = max(limits.memory_reserve_min, min(wanted, 8 * used, limits.memory_reserve_max))
        return following + size if following >= self.low else self.end
