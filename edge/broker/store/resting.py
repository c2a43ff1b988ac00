"""When logs are put at rest: so few are in use as objects that how many there are does not matter, and fewer still when
nothing comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.store.cursors import CursorTable
from edge.broker.store.limits import Limits
from edge.broker.store.logs import LogTable

CALM_S: Final = 2.0
"""How long no log comes into use before a burst counts as over."""
LOOKS: Final = 500
"""Logs looked at in one go when it is: 1 ms."""


class Resting:
    """Looks at two logs for each that came into use, those first that have been so for longest; at all of them once
    that is over."""

    def __init__(self, limits: Limits, logs: LogTable, cursors: CursorTable) -> None:
        self._limits = limits
        self._logs = logs
        self._cursors = cursors
        self._looking: Iterator[int] = iter(())
        self._came_at = 0.0
        self._looks_left = 0
        """At logs that came before, now that no others do."""

    def calm(self, now: float) -> bool:
        """No log has come into use, and none was counted, for a while."""
        return not self._logs.came and now - self._came_at >= CALM_S

    def look(self, now: float) -> None:
        """Not while a commit is running: it may have to fail, or to say what it removed. `now`: seconds, monotonic."""
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
            if state is not None:
                self._cursors.lay_down(state)
