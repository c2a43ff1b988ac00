"""Schedule the checks of sessions of absent clients in a heap, so that no check visits all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

_STALE_MAX: Final = 1_000
"""Outdated entries beyond the number of sessions, 100 bytes each. Each reconnect of a client leaves one, and a session
may live for a year."""


class DueSessions:
    """Heap of client identifiers by time. An entry may be outdated, and a client may have several."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, client_id: str, at: float | None) -> None:
        """Schedule a check of this session; none for None."""
        if at is not None:
            heapq.heappush(self._heap, (at, client_id))

    def take(self, now: float) -> str | None:
        """Remove and return an identifier that is due; None without one."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[1]

    def replace(self, due: Iterable[tuple[str, float]]) -> None:
        """Replace all entries."""
        self._heap = [(at, client_id) for client_id, at in due]
        heapq.heapify(self._heap)

    def is_outdated(self, sessions: int) -> bool:
        """Return True when many entries are outdated, with this number of sessions."""
        return len(self._heap) > 2 * sessions + _STALE_MAX
