"""Lag of the event loop, measured by the delay of a timer. A blocked loop serves no client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from edge.health.problems import FoundProblem, Severity

PERIOD_S: Final = 1.0
"""Interval of the timer."""
LAG_S_MAX: Final = 1.0
"""Delay beyond which the loop counts as blocked. No piece of work should take longer than 50 ms."""
WINDOW: Final = 60
"""Number of measurements that are kept: about a minute."""
TIMES_MAX: Final = 3
"""Blocked periods within the window that make it an error."""


class LoopLag:
    """Measure the lag of the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """Largest lag since the start."""
        self._late: deque[float] = deque(maxlen=WINDOW)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring the running loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._measure, loop)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def recent_s(self) -> float:
        """Largest lag of the last minute."""
        return max(self._late, default=0.0)

    def record(self, seconds: float) -> None:
        """Record a lag."""
        self._late.append(max(0.0, seconds))
        self.longest_s = max(self.longest_s, seconds)

    def problems(self) -> Iterator[FoundProblem]:
        """Yield the problem if the loop was blocked within the last minute."""
        if sum(late > LAG_S_MAX for late in self._late) >= TIMES_MAX:
            what = (
                f"it was blocked for more than {LAG_S_MAX:g} s several times in the last minute: no client was served"
            )
            yield FoundProblem(
                "event loop", what, "see the metric waypost_loop_lag_seconds and the traffic of the clients; report it"
            )
        elif self.recent_s > LAG_S_MAX:
            what = f"it was blocked for more than {LAG_S_MAX:g} s within the last minute"
            yield FoundProblem(
                "event loop",
                what,
                "if it happens again: see the traffic of the clients, and report it",
                Severity.WARNING,
            )

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self.record(now - self._due)
        self._due = now + PERIOD_S
        self._timer = loop.call_at(self._due, self._measure, loop)
