"""What ought to move and does not: seen by looking at it again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from typing import Final

STANDS_S: Final = 60.0
"""What has not moved for so long stands: a slow card and a hub that lands for a while are over by then."""


class StallDetector:
    """Since when each of some things is as it is, while it has something to do."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def stands(self, name: str, progress: Hashable, *, busy: bool) -> bool:
        """True when `name` was `busy` at each look of the last `STANDS_S` and `progress` was the same."""
        if not busy:
            self._seen.pop(name, None)
            return False
        now = self._monotonic_s()
        before, since = self._seen.get(name, (None, now))
        if before != progress:
            since = now
        self._seen[name] = (progress, since)
        return now - since >= STANDS_S

    def keep(self, names: Collection[str]) -> None:
        """Nothing but these is looked at any more."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
