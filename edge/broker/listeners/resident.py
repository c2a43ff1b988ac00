"""What memory the process takes, as the kernel counts it: the second line of defence behind the budget.

The budget counts what it knows of. What it does not know (buffers of libraries, pieces the allocator keeps) shows here.
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
"""Pages: all, resident, shared, … (proc(5))."""

TRIM_GAIN_SHARE: Final = 16
"""A trim was worth its time when it gave back this part of the memory."""


def resident_bytes() -> int:
    """What the kernel says; 0 where it does not say (Linux alone does)."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class ResidentMemory:
    """The process' resident memory, looked at in each tick, and given back where the allocator keeps it."""

    def __init__(
        self, bytes_max: int, read: Callable[[], int] = resident_bytes, trim: Callable[[], object] = trim_heap
    ) -> None:
        """`read` gives the resident bytes; `trim` has the allocator give back what it keeps."""
        self.bytes = 0
        """As of the last look."""
        self.exceeded = False
        """It is more than `bytes_max`, whatever the allocator gave back."""
        self._bytes_max = bytes_max
        self._read = read
        self._trim = trim
        self._after_trim = 0
        self._wait_s = TRIM_AGAIN_S_MIN
        self._trimmed_at = float("-inf")
        self._freed = False
        """Much has been given up since the allocator was asked last."""
        self._left = False
        """Peers have left since then, and what they had is not all counted."""
        self._freed_since = 0.0
        """Since when it is known that there is something to give back."""
        self._busy_at = float("-inf")
        """When something was given up last, or somebody left."""
        self._highest = 0
        """About the most since it was asked."""
        self._grew_at = 0.0
        """When it was more than that."""

    def look(self, now: float, *, freed: bool, left: bool = False) -> bool:
        """`freed`: much has been given up since the last look; `left`: peers have left. True when the allocator has
        been asked to give it back.

        Takes some 10 us. To give back takes 2 to 8 ms as a rule and up to 0.1 s, in which the loop stands: the
        allocator is locked meanwhile, so another thread would be no help. So it is asked when peers have stopped
        leaving, at once only where half of what the process may take is taken, and less and less often while it is in
        vain.
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
        """It has grown by something, and has stopped: what that took in passing is given back."""
        if self.bytes > self._highest + TRIM_SETTLED_BYTES // 2:
            self._highest, self._grew_at = self.bytes, now
        return self._highest >= self._after_trim + TRIM_SETTLED_BYTES and now - self._grew_at >= TRIM_SETTLED_S
