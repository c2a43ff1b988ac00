"""Detection of events in the last minute, by counters that rise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

RECENT_S: Final = 60.0
"""Time for which an event counts as recent: clients retry within it."""


class CounterRise:
    """Detect which counters have risen within `RECENT_S`."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._counted: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def lately(self, counters: Mapping[str, int]) -> frozenset[str]:
        """Return the names of counters that rose within `RECENT_S`. `counters`: all above 0, by name."""
        now = self._monotonic_s()
        for name, count in counters.items():
            if count > self._counted.get(name, 0):
                self._until[name] = now + RECENT_S
        self._counted = dict(counters)
        self._until = {name: until for name, until in self._until.items() if until > now}
        return frozenset(self._until)
