"""When to look at the sessions of clients that are away: in order of time, so that nobody walks over all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from edge.broker.mqtt.session import Session

_STALE_MAX: Final = 1_000
"""Entries that count no more beyond those of sessions there are, 100 bytes each: who comes and goes leaves one each
time, and a session may live for a year."""


class DueSessions:
    """A session may be here several times, or need no look when its time comes. It is here by its client identifier."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, session: Session) -> None:
        """Its client is away: look at it when its will is due, or its end."""
        at = session.due_at
        if at is not None:
            heapq.heappush(self._heap, (at, session.client_id))

    def take(self, now: float) -> str | None:
        """One whose time has come; None when there is none (any more)."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[1]

    def tidy(self, sessions: Iterable[Session], number: int) -> None:
        """`sessions` are all there are, `number` of them: forget what counts no more, when that is much."""
        if len(self._heap) > 2 * number + _STALE_MAX:
            self._heap.clear()
            for session in sessions:
                if session.attachment is None:
                    self.add(session)
