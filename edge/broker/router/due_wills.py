"""Wills of disconnected clients: published in the order in which they left, a few in each turn of the loop.

Thousands of clients leave together when their network fails, or when connections are closed for lack of memory, and
each will may be for a new address. A will that the store cannot take now, because it is full or fails, is published
later: its client is not there to send it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from bridge.message import RETAIN, Run
from edge.broker.delivery.ready import ReadySet
from edge.broker.limits import WILLS_AGAIN_S, WILLS_AT_ONCE, WILLS_PUT_OFF_BYTES_MAX
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import call_isolated
from edge.broker.router.batch import Publication

log = logging.getLogger(__name__)

_TOKEN: Final = (0,)
_FOR_NOW: Final = (Refusal.FULL, Refusal.STORE_FAILED)
"""Refusals of messages that may be taken later."""


class WillOrigin(Origin):
    """A will, and the origin of its message. A subclass keeps it on disk."""

    wills: DueWills

    def __init__(self, name: str, user: str, run: Run) -> None:
        self.name = name
        self.user = user
        self.run = run

    def delete_stored(self) -> None:
        """Delete the stored will: it is published next, in one commit if its message is stored."""

    def keep_stored(self) -> bool:
        """Keep the stored will, as its message could not be stored. Return False when it is obsolete."""
        return True

    def end(self) -> None:
        """Finish the will: its message is stored, or never will be."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self.end()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.wills.refused(self, why)


class DueWills:
    """Due wills of one router."""

    def __init__(
        self,
        publish: Callable[[Publication], None],
        ready: ReadySet,
    ) -> None:
        """Wills beyond `WILLS_AT_ONCE` are published in `ready`; all at once where it has no turns."""
        self._publish = publish
        self._ready = ready
        self._finished = not ready.has_turns
        self._waiting: dict[WillOrigin, None] = {}
        self._this_turn = 0
        """Number of wills published in this turn."""
        self._postponed: dict[WillOrigin, None] = {}
        self._postponed_bytes = 0
        self._again_at_s = 0.0

    def add(self, origin: WillOrigin) -> None:
        """Publish the will of a disconnected client: now, or after those before it."""
        origin.wills = self
        self._waiting[origin] = None
        if self._finished:
            self.finish()
            return
        if not self._this_turn:
            self._ready.add(self._next_turn)
        if self._this_turn < WILLS_AT_ONCE:
            self.publish(next(iter(self._waiting)))

    def publish(self, origin: WillOrigin) -> None:
        """Publish a will now at the latest. Nothing happens if it was published, or waits for the store."""
        if origin in self._waiting:
            del self._waiting[origin]
            self._this_turn += 1
            call_isolated(f"the will of {origin.name!r}", self._publish_one, origin)

    def postpone(self, origin: WillOrigin) -> None:
        """Publish the will when the store takes messages again."""
        origin.wills = self
        self._postponed[origin] = None
        self._postponed_bytes += _size(origin)
        while self._postponed_bytes > WILLS_PUT_OFF_BYTES_MAX:
            oldest = next(iter(self._postponed))
            log.error("dropped the will of %r: too many wait for room in the store", oldest.name)
            self.withdraw(oldest)
            oldest.delete_stored()
            oldest.end()

    def withdraw(self, origin: WillOrigin) -> bool:
        """Cancel a postponed will. Return False if it was not postponed."""
        if origin not in self._postponed:
            return False
        del self._postponed[origin]
        self._postponed_bytes -= _size(origin)
        return True

    def publish_postponed(self, origin: WillOrigin) -> None:
        """Publish a postponed will now: its client is back, and must not overtake it."""
        if self.withdraw(origin):
            self._waiting[origin] = None
            self.publish(origin)

    def refused(self, origin: WillOrigin, why: Refusal) -> None:
        """Handle the refusal of a published will. One that cannot be retained is published as an ordinary message."""
        if why is Refusal.NAMES and origin.run.flags & RETAIN:
            origin.run.flags &= ~RETAIN
            self._waiting[origin] = None
            self.publish(origin)
        elif why not in _FOR_NOW:
            log.warning("the will of %r to %s was refused: %s", origin.name, origin.run.address, why.value)
            origin.end()
        elif origin.keep_stored():
            self.postpone(origin)

    def tick(self, now_s: float, *, failing: bool) -> None:
        """Publish postponed wills, unless commits fail (`failing`). Called every `limits.TICK_S`. It happens seldom, as
        live subscribers get a message again if its commit fails."""
        if not self._postponed or failing or now_s < self._again_at_s:
            return
        self._again_at_s = now_s + WILLS_AGAIN_S
        for origin in list(self._postponed):
            self.withdraw(origin)
            self.add(origin)

    def finish(self) -> None:
        """Publish all waiting wills, and later ones at once: the loop has no further turns."""
        self._finished = True
        for origin in list(self._waiting):
            self.publish(origin)

    def _publish_one(self, origin: WillOrigin) -> None:
        origin.delete_stored()
        self._publish(Publication(origin, origin.run, _TOKEN))

    def _next_turn(self) -> None:
        self._this_turn = 0
        for origin in list(islice(self._waiting, WILLS_AT_ONCE)):
            self.publish(origin)
        if self._this_turn and not self._finished:
            self._ready.add(self._next_turn)


def _size(origin: WillOrigin) -> int:
    return len(origin.run.address) + sum(map(len, origin.run.bodies))
