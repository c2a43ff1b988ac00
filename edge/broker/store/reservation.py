"""Numbers reserved ahead of their use, so that no number is used twice after a crash.

Messages of a log that is kept in memory are never written, but their positions and sequences must not be used again.
So the counter on the medium is ahead: numbers below the `end` of a reservation may be used, and after a crash the store
continues at `end`. Small state of kind `MEMORY` records where the reserved numbers start.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge.broker.store.limits import MEMORY_RESERVE_LEFT, StoreLimits

MEMORY: Final = "memory"
"""Kind of the small state with the reservations, and reason in the ledger for messages lost from memory."""

SPILLS: Final = "spills"
"""Kind of the small state with the number of commits that reserved or released numbers, in one row. The name is from
the time when such logs spilled over to the medium."""
SPILLS_KEY: Final = "count"
SPILLS_LOG: Final = 0
"""Log number for this count among the ends of logs. No log has it. Numbers beyond those reserved in a copy
of the store are used only after another such commit. So the count detects a copy although ends are reserved ahead."""

_SPAN: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<Q")


class ReservedRange(NamedTuple):
    """Numbers ``base <= n < end``, which may have been used for messages that were only in memory.

    They are positions of a log, or sequences of one address in it. Messages below `base` are on the medium, or no
    consumer group needs them.
    """

    log: int
    address: str | None
    """None: positions."""
    base: int
    end: int


def range_key(log: int, address: str | None) -> str:
    """Return the key of the small state for a `ReservedRange`."""
    return str(log) if address is None else f"{log} {address}"


def pack_range(base: int, end: int) -> bytes:
    """Return the value for a `ReservedRange`."""
    return _SPAN.pack(base, end)


def unpack_range(key: str, value: bytes) -> ReservedRange:
    """Return the range of a key and value from `range_key` and `pack_range`. Raises ValueError for others."""
    log, space, address = key.partition(" ")
    try:
        base, end = _SPAN.unpack(value)
    except struct.error as error:
        raise ValueError(f"reservation {key!r} is damaged: {error}") from error
    return ReservedRange(int(log), address if space else None, base, end)


def pack_count(count: int) -> bytes:
    """Return the value of the row of kind `SPILLS`."""
    return _COUNT.pack(count)


def unpack_count(value: bytes) -> int:
    """Return the count, or 0 for a damaged value: a hub that knows a higher count then requests a new epoch."""
    return int(_COUNT.unpack(value)[0]) if len(value) == _COUNT.size else 0


@dataclass(slots=True)
class Reservation:
    """Reserved positions of one log, or reserved sequences of one address."""

    end: int = 0
    """Numbers below it may be used."""
    start: int = 0
    """Next number at the time of the reservation."""
    low: int = 0
    """Number at which the next reservation should be made."""
    at_s: float = 0.0
    """Time of the reservation."""
    logs: tuple[int, ...] = ()
    """Logs in memory that may use them; usually one."""
    held: int = 0
    """Number of runs in rings with some of these numbers."""
    seen: int = -1
    """Next number at the last search for idle addresses."""

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
        below the old one, as a failed commit may still be found on the medium.
        """
        used = following + needed - self.start if self.end else needed
        wanted = int(used / max(now - self.at_s, 1e-3) * limits.memory_reserve_s) if self.end else 0
        size = max(limits.memory_reserve_min, min(wanted, 8 * used, limits.memory_reserve_max))
        return max(self.end, following + needed + size)
