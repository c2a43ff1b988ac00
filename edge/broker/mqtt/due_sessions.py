"""Order the looks at sessions of absent clients by time, so that no look goes through all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

_STALE_MAX: Final = 1_000
"""Outdated entries beyond the number of sessions, 100 bytes each. A client that comes and goes leaves one each time,
and a session may live for a year."""


class DueSessions:
    """Client identifiers by time. One may be here several times, or need no look when its time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, client_id: str, at: float | None) -> None:
        """Look at this session at that time; never for None."""
        if at is not None:
            heapq.heappush(self._heap, (at, client_id))

    def take(self, now: float) -> str | None:
        """Remove and return one that is due; None if the heap has nothing due."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[1]

    def replace(self, due: Iterable[tuple[str, float]]) -> None:
        """Forget what was added, and look at these."""
        self._heap = [(at, client_id) for client_id, at in due]
        heapq.heapify(self._heap)

    def is_outdated(self, sessions: int) -> bool:
        """Return True when many entries are outdated, with this number of sessions."""
        return len(self._heap) > 2 * sessions + _STALE_MAX
