"""When the objects of logs are dropped: so few are kept that how many logs there are does not matter, and fewer still
while no messages come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.store.cursors import CursorTable
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.limits import StoreLimits
from edge.broker.store.logs import LogTable

CALM_S: Final = 2.0
"""Seconds without a log that comes into use, after which a burst counts as over."""
LOOKS: Final = 500
"""Logs looked at in one go when it is: 5 ms."""


class LogCache:
    """Looks at two logs for each that came into use, oldest first, and at all of them once that is over."""

    def __init__(self, limits: StoreLimits, logs: LogTable, cursors: CursorTable, gatherer: Gatherer) -> None:
        self._limits = limits
        self._logs = logs
        self._cursors = cursors
        self._gatherer = gatherer
        self._looking: Iterator[int] = iter(())
        self._came_at = 0.0
        self._looks_left = 0
        """At logs that came before, now that no others do."""

    def calm(self, now: float) -> bool:
        """Return True when no log has come into use, and none was counted, for a while."""
        return not self._logs.came and now - self._came_at >= CALM_S

    def look(self, now: float) -> None:
        """Drop some objects. Not while a commit is running. `now`: seconds, monotonic."""
        logs = self._logs
        if logs.came:
            looks, most = 2 * logs.came, self._limits.logs_in_use_max
            logs.came, self._came_at, self._looks_left = 0, now, 2 * len(logs.in_use)
        elif self._looks_left and self.calm(now):
            most = self._limits.logs_in_use_calm_max
            looks = min(LOOKS, self._looks_left, max(0, len(logs.in_use) - most))
            self._looks_left -= looks
        else:
            return
        for _ in range(min(looks, len(logs.in_use) - most)):
            log = next(self._looking, None)
            if log is None:
                self._looking = iter(list(logs.in_use))
                continue
            state = logs.in_use.get(log)
            if state is not None and not self._gatherer.is_changing(log):
                self._cursors.let_cursors_go(state)
                logs.let_go(state)
