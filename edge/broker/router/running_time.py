"""Time for which a store has been served, over all starts: the clock for unused subscriptions.

UTC may be set at any time, to 1970 or to 2200, and while the gateway is off no client can come. So neither is counted.
"""

from __future__ import annotations

from typing import Final

from edge.broker.limits import RUNNING_TIME_KEPT_S
from edge.broker.store.contract import SmallState

KEPT: Final = ("clock", "running")
"""Kind and key of the small state with the seconds, eight bytes."""


class RunningTime:
    """Running time in whole seconds. A crash loses those since the last write, `RUNNING_TIME_KEPT_S` at most."""

    def __init__(self, state: SmallState) -> None:
        kind, key = KEPT
        kept = dict(state.items(kind)).get(key)
        self.now = self._kept = 0 if kept is None else int.from_bytes(kept, "big")
        self._state = state
        self._began_s: float | None = None
        """Monotonic time at running time 0."""

    def tick(self, now_s: float, *, counts: bool) -> None:
        """Advance the time to `now_s` (monotonic). With `counts` a subscription depends on it, and it is written now
        and then."""
        if self._began_s is None:
            self._began_s = now_s - self.now
        self.now = max(self.now, int(now_s - self._began_s))
        if counts and self.now - self._kept >= RUNNING_TIME_KEPT_S:
            self.keep()

    def keep(self) -> None:
        """Write the time with the open group. Called when another time is written, so that none is ahead of it after a
        crash."""
        if self._kept != self.now:
            self._kept = self.now
            self._state.put(*KEPT, self.now.to_bytes(8, "big"))
