"""Wills of clients that are gone: published in the order in which these went, a few in each turn of the loop.

Thousands go together when their network does, or when they are closed for want of room, and each may have left a
message for an address nobody has sent to before. What the store cannot take now, as it is full or fails, is put off:
the client is not there to send it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from bridge.message import RETAIN, Run
from edge.broker.limits import WILLS_AGAIN_S, WILLS_AT_ONCE, WILLS_PUT_OFF_BYTES_MAX
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import guarded
from edge.broker.router.batch import Publication

log = logging.getLogger(__name__)

_TOKEN: Final = (0,)
_FOR_NOW: Final = (Refusal.FULL, Refusal.STORE_FAILED)
"""Refusals of what may be taken later."""


class WillOrigin(Origin):
    """A will, and the origin of its message. Whoever keeps it on disk says so in a class of its own."""

    wills: DueWills

    def __init__(self, name: str, user: str, run: Run) -> None:
        self.name = name
        self.user = user
        self.run = run

    def leaves(self) -> None:
        """It is published next: it is kept no longer, in one commit where it is stored."""

    def stays(self) -> bool:
        """It could not be stored: it is kept on. False where nobody wants it any more."""
        return True

    def is_over(self) -> None:
        """It is stored, or will never be."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self.is_over()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.wills.refused(self, why)


class DueWills:
    """Of one router."""

    def __init__(
        self,
        publish: Callable[[Publication], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon` has a function called in the next turn of the loop; None: there are no turns, all are published at
        once."""
        self._publish = publish
        self._soon = soon
        self._waiting: dict[WillOrigin, None] = {}
        self._this_turn = 0
        """Published in this turn."""
        self._put_off: dict[WillOrigin, None] = {}
        self._put_off_bytes = 0
        self._again_at_s = 0.0

    def add(self, origin: WillOrigin) -> None:
        """The client is gone, publish its will: now, or when those before it have been."""
        origin.wills = self
        self._waiting[origin] = None
        if self._soon is None:
            self.finish()
            return
        if not self._this_turn:
            self._soon(self._next_turn)
        if self._this_turn < WILLS_AT_ONCE:
            self.publish(next(iter(self._waiting)))

    def publish(self, origin: WillOrigin) -> None:
        """Not later than now; nothing happens when it has been, or is put off."""
        if origin in self._waiting:
            del self._waiting[origin]
            self._this_turn += 1
            guarded(f"the will of {origin.name!r}", self._publish_one, origin)

    def put_off(self, origin: WillOrigin) -> None:
        """Publish it when the store takes messages."""
        origin.wills = self
        self._put_off[origin] = None
        self._put_off_bytes += _size(origin)
        while self._put_off_bytes > WILLS_PUT_OFF_BYTES_MAX:
            oldest = next(iter(self._put_off))
            log.error("the will of %r is given up: too many wait for room in the store", oldest.name)
            self.withdraw(oldest)
            oldest.leaves()
            oldest.is_over()

    def withdraw(self, origin: WillOrigin) -> bool:
        """It was put off, and is not to be published any more; False, and nothing happens, where it was not."""
        if origin not in self._put_off:
            return False
        del self._put_off[origin]
        self._put_off_bytes -= _size(origin)
        return True

    def go_ahead(self, origin: WillOrigin) -> None:
        """Publish it now if it was put off: its client is back, and is not to overtake it."""
        if self.withdraw(origin):
            self._waiting[origin] = None
            self.publish(origin)

    def refused(self, origin: WillOrigin, why: Refusal) -> None:
        """It was published, and not taken. One that cannot be retained is a message all the same."""
        if why is Refusal.NAMES and origin.run.flags & RETAIN:
            origin.run.flags &= ~RETAIN
            self._waiting[origin] = None
            self.publish(origin)
        elif why not in _FOR_NOW:
            log.warning("the will of %r to %s is not taken: %s", origin.name, origin.run.address, why.value)
            origin.is_over()
        elif origin.stays():
            self.put_off(origin)

    def tick(self, now_s: float, *, failing: bool) -> None:
        """Every `limits.TICK_S`: publish what was put off, unless commits fail (`failing`). Seldom, as live subscribers
        get a message again whose commit fails."""
        if not self._put_off or failing or now_s < self._again_at_s:
            return
        self._again_at_s = now_s + WILLS_AGAIN_S
        for origin in list(self._put_off):
            self.withdraw(origin)
            self.add(origin)

    def finish(self) -> None:
        """Publish all that wait, and from now on each at once: the loop has no turns any more."""
        self._soon = None
        for origin in list(self._waiting):
            self.publish(origin)

    def _publish_one(self, origin: WillOrigin) -> None:
        origin.leaves()
        self._publish(Publication(origin, origin.run, _TOKEN))

    def _next_turn(self) -> None:
        self._this_turn = 0
        for origin in list(islice(self._waiting, WILLS_AT_ONCE)):
            self.publish(origin)
        if self._this_turn and self._soon is not None:
            self._soon(self._next_turn)


def _size(origin: WillOrigin) -> int:
    return len(origin.run.address) + sum(map(len, origin.run.bodies))
