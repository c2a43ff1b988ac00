"""How old a data file may be before a log names it. Upkeep deletes files that no log names once they are older than
whoever may still commit them: what a killed job has left behind.

A suspended machine and a slow upload count: time goes on for the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

UNNAMED_KEPT_HOURS: Final = 7 * 24
"""How long a file stays that no log names."""
WRITTEN_HOURS_MAX: Final = 24
"""How long after its first file was begun a commit is made. The days between the two are for clocks that differ, and
for a commit that is held up on its way."""
_HOUR_S: Final = 3600.0


class WrittenTooLongAgo(RuntimeError):
    """A commit would name files that may have been deleted."""

    def __init__(self, table: str, hours: float) -> None:
        super().__init__(
            f"what was written to {table} was begun {hours:.0f} h ago, and may have been deleted since: it is not "
            "committed. Nothing is lost or there twice, and the next pass writes it anew"
        )


def awake_or_not() -> float:
    """Seconds since this machine was started, those included in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Begun:
    """When the first file of a commit was begun: now."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or awake_or_not
        self._at = self._clock()

    def require_recent(self, table: str) -> None:
        """Raise `WrittenTooLongAgo` where what was written since may not be there any more."""
        hours = (self._clock() - self._at) / _HOUR_S
        if hours > WRITTEN_HOURS_MAX:
            raise WrittenTooLongAgo(table, hours)
