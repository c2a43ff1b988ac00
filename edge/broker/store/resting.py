"""When logs are put at rest: so few are in use as objects that how many there are does not matter."""

from __future__ import annotations

from collections.abc import Iterator

from edge.broker.store.cursors import CursorTable
from edge.broker.store.limits import Limits
from edge.broker.store.logs import LogTable


class Resting:
    """Looks at two logs for each that came into use, those first that have been so for longest."""

    def __init__(self, limits: Limits, logs: LogTable, cursors: CursorTable) -> None:
        self._limits = limits
        self._logs = logs
        self._cursors = cursors
        self._looking: Iterator[int] = iter(())

    def look(self) -> None:
        """Not while a commit is running: it may have to fail, or to say what it removed."""
        logs, looks = self._logs, 2 * self._logs.came
        logs.came = 0
        for _ in range(min(looks, len(logs.in_use) - self._limits.logs_in_use_max)):
            log = next(self._looking, None)
            if log is None:
                self._looking = iter(list(logs.in_use))
                continue
            state = logs.in_use.get(log)
            if state is not None:
                self._cursors.lay_down(state)
