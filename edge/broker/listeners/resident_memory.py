"""Resident memory of the process: the second line of defence behind the memory budget.

The budget counts what connections hold. Buffers of libraries and memory that the allocator keeps only show here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.broker.limits import (
    TRIM_AGAIN_S_MAX,
    TRIM_AGAIN_S_MIN,
    TRIM_CALM_S,
    TRIM_GROWTH_BYTES,
    TRIM_LATEST_S,
    TRIM_SETTLED_BYTES,
    TRIM_SETTLED_S,
)
from edge.broker.listeners.heap import trim_heap

STATM: Final = Path("/proc/self/statm")
"""Memory in pages: total, resident, shared, … (proc(5))."""

TRIM_GAIN_SHARE: Final = 16
"""A trim was worthwhile if it released 1/16 of the memory."""


def resident_bytes() -> int:
    """Return the resident memory of the process; 0 except on Linux."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class ResidentMemory:
    """Monitors the resident memory in each tick, and trims the heap when the allocator keeps much."""

    def __init__(
        self, bytes_max: int, read: Callable[[], int] = resident_bytes, trim: Callable[[], object] = trim_heap
    ) -> None:
        """`read` returns the resident bytes; `trim` makes the allocator release unused memory."""
        self.bytes = 0
        """Resident bytes at the last tick."""
        self.exceeded = False
        """True above `bytes_max`, after any trim."""
        self._bytes_max = bytes_max
        self._read = read
        self._trim = trim
        self._after_trim = 0
        self._wait_s = TRIM_AGAIN_S_MIN
        self._trimmed_at = float("-inf")
        self._freed = False
        """Much memory was freed since the last trim."""
        self._left = False
        """Connections have ended since the last trim; not all of their memory is counted."""
        self._freed_since = 0.0
        """Time of the first freed memory since the last trim."""
        self._busy_at = float("-inf")
        """Time of the last freed memory or ended connection."""
        self._highest = 0
        """Approximate maximum since the last trim."""
        self._grew_at = 0.0
        """Time when that maximum grew last."""

    def update(self, now: float, *, freed: bool, left: bool = False) -> bool:
        """Read the memory and trim the heap if it is worthwhile. Return True after a trim.

        `freed`: much memory was freed since the last call; `left`: connections have ended. Reading takes some 10 us. A
        trim takes 2 to 8 ms, up to 0.1 s, and blocks the loop: the allocator is locked, so another thread would not
        help. So the heap is trimmed once connections have stopped ending, at once only above half of the memory limit,
        and less often after trims without effect.
        """
        self.bytes = self._read()
        grown = self.bytes > self._after_trim + TRIM_GROWTH_BYTES
        self._left = self._left or left
        if freed or left:
            self._busy_at = now
        if not self._freed and (freed or (self._left and grown)):
            self._freed, self._freed_since = True, now
        if freed or grown:
            self._wait_s = TRIM_AGAIN_S_MIN
        calm = now - self._busy_at >= TRIM_CALM_S or now - self._freed_since >= TRIM_LATEST_S
        needed = self.bytes > self._bytes_max // 2 or (self._freed and calm) or self._is_settled(now)
        trims = needed and now - self._trimmed_at >= self._wait_s
        if trims:
            self._freed = self._left = False
            before, self._trimmed_at = self.bytes, now
            self._trim()
            self.bytes = self._after_trim = self._highest = self._read()
            if before - self.bytes < before // TRIM_GAIN_SHARE:
                self._wait_s = min(2 * self._wait_s, TRIM_AGAIN_S_MAX)
        self.exceeded = self.bytes > self._bytes_max
        return trims

    def _is_settled(self, now: float) -> bool:
        """Return True when growth has stopped, so that temporary memory can be released."""
        if self.bytes > self._highest + TRIM_SETTLED_BYTES // 2:
            self._highest, self._grew_at = self.bytes, now
        return self._highest >= self._after_trim + TRIM_SETTLED_BYTES and now - self._grew_at >= TRIM_SETTLED_S
