"""Drops objects of unused logs, so that memory does not grow with the number of logs. An idle store keeps even
fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.store.cursors import CursorTable
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.limits import StoreLimits
from edge.broker.store.logs import LogTable

CALM_S: Final = 2.0
"""Seconds without a newly used log, after which a burst is over."""
CHECKS_MAX: Final = 500
"""Logs checked in one call after a burst: 5 ms."""


class LogCache:
    """Checks two logs for each newly used one, oldest first, and all logs after a burst."""

    def __init__(self, limits: StoreLimits, logs: LogTable, cursors: CursorTable, gatherer: Gatherer) -> None:
        self._limits = limits
        self._logs = logs
        self._cursors = cursors
        self._gatherer = gatherer
        self._looking: Iterator[int] = iter(())
        self._came_at = 0.0
        self._checks_left = 0
        """Logs still to be checked after the burst."""

    def is_idle(self, now: float) -> bool:
        """Return True when no log came into use or was counted for a while."""
        return not self._logs.came and now - self._came_at >= CALM_S

    def maintain(self, now: float) -> None:
        """Drop some objects. Do not call it during a commit. `now`: seconds, monotonic."""
        logs = self._logs
        if logs.came:
            looks, most = 2 * logs.came, self._limits.logs_in_use_max
            logs.came, self._came_at, self._checks_left = 0, now, 2 * len(logs.in_use)
        elif self._checks_left and self.is_idle(now):
            most = self._limits.logs_in_use_calm_max
            looks = min(CHECKS_MAX, self._checks_left, max(0, len(logs.in_use) - most))
            self._checks_left -= looks
        else:
            return
        for _ in range(min(looks, len(logs.in_use) - most)):
            log = next(self._looking, None)
            if log is None:
                self._looking = iter(list(logs.in_use))
                continue
            state = logs.in_use.get(log)
            if state is not None and not self._gatherer.is_changing(log):
                self._cursors.drop_unused_cursors(state)
                logs.drop_object(state)
