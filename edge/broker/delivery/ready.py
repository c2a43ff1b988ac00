"""Work that continues in the next turn of the event loop.

Work that would hold up other connections does a part of its work and adds itself here: a subscription with more to
deliver, a session or link that sends retained messages, wills of many clients that went together, a consumer that joins
thousands of queues. All of it shares `READY_S` of each turn, in the order in which it was added.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.limits import READY_S
from edge.broker.model.isolation import call_isolated

Work = Callable[[], None]
"""Bound method: two of the same object and function are equal."""


class ReadySet:
    """Ready work of one router."""

    __slots__ = ("_now_s", "_ready", "_scheduled", "_soon")

    def __init__(self, soon: Callable[[Work], object] | None, now_s: Callable[[], float]) -> None:
        """`soon` calls a function in the next turn of the loop. None: without turns, work is done at once.
        `now_s` is monotonic, in seconds.
        """
        self._soon = soon
        self._now_s = now_s
        self._ready: dict[Work, None] = {}
        self._scheduled = False

    def __contains__(self, work: Work) -> bool:
        return work in self._ready

    @property
    def has_turns(self) -> bool:
        """True when work can be postponed to a later turn."""
        return self._soon is not None

    def add(self, work: Work) -> None:
        """Call `work` in the next turn, once even if it is added several times. An exception of it is logged."""
        self._ready[work] = None
        if not self._scheduled:
            self._scheduled = True
            self._schedule()

    def discard(self, work: Work) -> None:
        """Discard work after the end of its owner."""
        self._ready.pop(work, None)

    def _schedule(self) -> None:
        if self._soon is not None:
            self._soon(self._run)
            return
        while self._ready:
            self._run_some()
        self._scheduled = False

    def _run(self) -> None:
        """Use this turn's share, and leave the rest to the next turn."""
        self._run_some()
        if self._ready:
            self._schedule()
        else:
            self._scheduled = False

    def _run_some(self) -> None:
        """Call what was ready at the start of this turn, as far as there is time."""
        until_s = self._now_s() + READY_S
        ready, self._ready = self._ready, {}
        while ready:
            work = next(iter(ready))
            del ready[work]
            call_isolated("the work of another turn", work)
            if ready and self._now_s() >= until_s:
                self._ready = {**ready, **self._ready}
                return
