"""Limit on the age of data files when a commit names them.

Maintenance deletes files that no log names, which a killed job leaves behind, once they are too old to be committed.
Time counts while a machine is suspended or an upload is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

UNNAMED_KEPT_HOURS: Final = 7 * 24
"""Hours that a file without a log entry is kept."""
WRITTEN_HOURS_MAX: Final = 24
"""Longest time from the first file to the commit. The days in between are for differing clocks and delayed commits."""
_HOUR_S: Final = 3600.0


class WrittenTooLongAgo(RuntimeError):
    """A commit would name files that may have been deleted."""

    def __init__(self, table: str, hours: float) -> None:
        super().__init__(
            f"the files for {table} were started {hours:.0f} h ago and may have been deleted since: they are not "
            "committed. Nothing is lost or duplicated, and the next pass writes them again"
        )


def time_since_boot() -> float:
    """Return seconds since the start of this machine, including the time of suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WriteClock:
    """Measures the time since the first file of a commit."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time_since_boot
        self._at = self._clock()

    def require_recent(self, table: str) -> None:
        """Raise `WrittenTooLongAgo` if the files written since may have been deleted."""
        hours = (self._clock() - self._at) / _HOUR_S
        if hours > WRITTEN_HOURS_MAX:
            raise WrittenTooLongAgo(table, hours)
