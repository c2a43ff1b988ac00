"""Load averages for `$SYS/broker/load`: rates per minute, exponentially decayed over 1, 5 and 15 minutes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

WINDOWS_MIN: Final = (1, 5, 15)


class LoadAverages:
    """Averages of named counters, updated once a period (as Mosquitto does: mosquitto(8), "Broker Status")."""

    def __init__(self) -> None:
        self._updated_at: float | None = None
        self._counts: Mapping[str, int] = {}
        self._averages: dict[tuple[str, int], float] = {}

    def update(self, counts: Mapping[str, int], now: float) -> None:
        """Process the counters at `now`, in seconds. The first call starts the first period, which includes all counts
        before it."""
        before, self._updated_at = self._updated_at, now
        if before is None:
            self._counts = dict.fromkeys(counts, 0)
            return
        if now <= before:
            self._updated_at = before
            return
        counted, self._counts = self._counts, dict(counts)
        passed_min = (now - before) / 60
        for name, count in counts.items():
            per_minute = (count - counted.get(name, 0)) / passed_min
            for window in WINDOWS_MIN:
                key, decay = (name, window), math.exp(-passed_min / window)
                average = self._averages.get(key, 0.0)
                self._averages[key] = per_minute + decay * (average - per_minute)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of each average, as ``messages/sent/1min`` and ``12.50``."""
        for name in self._counts:
            for window in WINDOWS_MIN:
                yield f"{name}/{window}min", f"{self._averages.get((name, window), 0.0):.2f}"
