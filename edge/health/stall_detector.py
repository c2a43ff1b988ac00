"""Detection of work that makes no progress, by repeated checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from typing import Final

STALLED_S: Final = 60.0
"""Time without progress after which work counts as stalled: longer than a slow commit or landing."""


class StallDetector:
    """Track since when named work has made no progress."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def is_stalled(self, name: str, progress: Hashable, *, busy: bool) -> bool:
        """Return True when `name` was `busy` with the same `progress` at each check of the last `STALLED_S`."""
        if not busy:
            self._seen.pop(name, None)
            return False
        now = self._monotonic_s()
        before, since = self._seen.get(name, (None, now))
        if before != progress:
            since = now
        self._seen[name] = (progress, since)
        return now - since >= STALLED_S

    def keep(self, names: Collection[str]) -> None:
        """Forget all other names."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
