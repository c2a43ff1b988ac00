"""How long a store has been served, over all starts: the clock of what waits for somebody to come.

UTC is set at any time, to 1970 and to 2200, and while the gateway is off nobody could have come. So neither is counted.
"""

from __future__ import annotations

from typing import Final

from edge.broker.limits import RUNNING_TIME_KEPT_S
from edge.broker.store.contract import SmallState

KEPT: Final = ("clock", "running")
"""Kind and key of the small state with the seconds, eight bytes."""


class RunningTime:
    """Whole seconds. A crash takes those since they were last written, `RUNNING_TIME_KEPT_S` at most."""

    def __init__(self, state: SmallState) -> None:
        kind, key = KEPT
        kept = dict(state.items(kind)).get(key)
        self.now = self._kept = 0 if kept is None else int.from_bytes(kept, "big")
        self._state = state
        self._began_s: float | None = None
        """What the monotonic clock would have shown at 0."""

    def tick(self, now_s: float, *, counts: bool) -> None:
        """`now_s`: monotonic; `counts`: something waits, so that it is worth a write now and then."""
        if self._began_s is None:
            self._began_s = now_s - self.now
        self.now = max(self.now, int(now_s - self._began_s))
        if counts and self.now - self._kept >= RUNNING_TIME_KEPT_S:
            self.keep()

    def keep(self) -> None:
        """Write it with the open group: whoever writes a time does, so that no time lies ahead after a crash."""
        if self._kept != self.now:
            self._kept = self.now
            self._state.put(*KEPT, self.now.to_bytes(8, "big"))
