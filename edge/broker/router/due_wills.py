"""Wills of clients that are gone: published in the order in which these went, a few in each turn of the loop.

Thousands go together when their network does, or when they are closed for want of room, and each may have left a
message for an address nobody has sent to before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from bridge.message import Run
from edge.broker.limits import WILLS_AT_ONCE
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import guarded


class WillOrigin(Origin):
    """The origin of a will: nobody waits for an answer."""

    def __init__(self, name: str, user: str) -> None:
        self.name = name
        self.user = user

    def accepted(self, tokens: Sequence[int]) -> None:
        """Nobody to tell."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Nobody to tell."""


class _Due(NamedTuple):
    run: Run
    published: Callable[[], object]


class DueWills:
    """Of one router."""

    def __init__(
        self,
        publish: Callable[[Origin, Run, Sequence[int]], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon` has a function called in the next turn of the loop; None: there are no turns, all are published at
        once."""
        self._publish = publish
        self._soon = soon
        self._waiting: dict[WillOrigin, _Due] = {}
        self._this_turn = 0
        """Published in this turn."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, origin: WillOrigin, run: Run, published: Callable[[], object] = lambda: None) -> None:
        """The client is gone, publish its will: now, or when those before it have been. `published` is called then, in
        the turn in which the will joins a commit."""
        self._waiting[origin] = _Due(run, published)
        if self._soon is None:
            self.finish()
            return
        if not self._this_turn:
            self._soon(self._next_turn)
        if self._this_turn < WILLS_AT_ONCE:
            self.publish(next(iter(self._waiting)))

    def publish(self, origin: WillOrigin) -> None:
        """Not later than now; nothing happens when it has been."""
        due = self._waiting.pop(origin, None)
        if due is not None:
            self._this_turn += 1
            guarded(f"the will of {origin.name!r}", self._publish_one, origin, due)

    def finish(self) -> None:
        """Publish all that wait, and from now on each at once: the loop has no turns any more."""
        self._soon = None
        for origin in list(self._waiting):
            self.publish(origin)

    def _publish_one(self, origin: WillOrigin, due: _Due) -> None:
        self._publish(origin, due.run, ())
        due.published()

    def _next_turn(self) -> None:
        self._this_turn = 0
        for origin in list(islice(self._waiting, WILLS_AT_ONCE)):
            self.publish(origin)
        if self._this_turn and self._soon is not None:
            self._soon(self._next_turn)
