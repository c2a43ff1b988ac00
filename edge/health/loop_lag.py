"""A watchdog of the event loop: how late its timers come. While it is held up, nobody is served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from edge.health.problems import FoundProblem, Severity

PERIOD_S: Final = 1.0
"""Between two looks."""
LAG_S_MAX: Final = 1.0
"""Longer than this the loop was held up by one piece of work; the longest meant to be in one is 50 ms."""
WINDOW: Final = 60
"""Looks that are remembered: about a minute."""
TIMES_MAX: Final = 3
"""Held up as often within the window, it lasts."""


class LoopLag:
    """Measures the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """Since the start."""
        self._late: deque[float] = deque(maxlen=WINDOW)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; needs the running loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._look, loop)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def recent_s(self) -> float:
        """The longest of the last minute."""
        return max(self._late, default=0.0)

    def late(self, seconds: float) -> None:
        """A look came so much too late."""
        self._late.append(max(0.0, seconds))
        self.longest_s = max(self.longest_s, seconds)

    def problems(self) -> Iterator[FoundProblem]:
        """One, while it is held up again and again."""
        if sum(late > LAG_S_MAX for late in self._late) >= TIMES_MAX:
            what = f"work held it up for more than {LAG_S_MAX:g} s, several times in the last minute: nobody was served"
            yield FoundProblem(
                "event loop", what, "see the metric waypost_loop_lag_seconds, and who sends what; report it"
            )
        elif self.recent_s > LAG_S_MAX:
            what = f"it was held up for more than {LAG_S_MAX:g} s within the last minute"
            yield FoundProblem(
                "event loop", what, "if it comes again: see who sends what, and report it", Severity.WARNING
            )

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self.late(now - self._due)
        self._due = now + PERIOD_S
        self._timer = loop.call_at(self._due, self._look, loop)
