"""Back-pressure of live subscribers: who publishes to one that reads, but not fast enough, waits for it.

A live subscription promises nothing, so it could just drop; yet a subscriber that is a little slower than a burst would
lose messages for no good reason. So its publishers are held back while more than `LIVE_BEHIND_BYTES_MAX` waits for it.
Nobody is held back for long: a subscriber that has not caught up within `LIVE_HOLD_S_MAX` is *stalled*, and what is too
much for it is dropped and counted until it has read everything. Publishers to other addresses feel nothing.

Two clients that flood each other at QoS 1 hold each other back, acknowledgements included; that ends the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from edge.broker.limits import LIVE_HOLD_S_MAX, TICK_S
from edge.broker.model.interfaces import Origin
from edge.broker.model.isolation import origin_called

HOLD_TICKS_MAX = round(LIVE_HOLD_S_MAX / TICK_S)


class SubscriberPace(enum.Enum):
    """How a live subscriber reads."""

    KEEPING_UP = "keeping up"
    BEHIND = "behind: its publishers wait"
    STALLED = "stalled: nobody waits, it loses what is too much"


class Paced(Protocol):
    """A subscription somebody may be held back for."""

    pace: SubscriberPace

    def pump(self) -> None:
        """Deliver what is waiting."""
        ...


class BackPressure:
    """Subscriptions that are behind, and the origins held back for them."""

    __slots__ = ("_behind", "_held", "_wake", "unfinished")

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when `unfinished` has something to do: `Router.flush` is to follow once this turn ends."""
        self.unfinished: dict[Paced, None] = {}
        """Subscriptions with more to deliver once what they were given has been written."""
        self._wake = wake
        self._behind: dict[Paced, int] = {}
        """Ticks each has been behind for."""
        self._held: dict[Origin, None] = {}

    def press(self, subscription: Paced, origin: Origin | None) -> None:
        """`subscription` has too much waiting: hold back `origin`, which sends it more, until all have caught up or
        stalled."""
        subscription.pace = SubscriberPace.BEHIND
        self._behind.setdefault(subscription, 0)
        if origin is not None and origin not in self._held:
            self._held[origin] = None
            origin_called(origin, origin.hold_back)

    def relieve(self, subscription: Paced) -> None:
        """`subscription` has caught up, or is gone."""
        subscription.pace = SubscriberPace.KEEPING_UP
        self._not_behind(subscription)

    def forget(self, origin: Origin) -> None:
        """The origin is gone."""
        self._held.pop(origin, None)

    def later(self, subscription: Paced) -> None:
        """`subscription` goes on delivering after this turn."""
        self.unfinished[subscription] = None
        self._wake()

    def go_on(self) -> None:
        """Deliver more of what is `unfinished`."""
        unfinished, self.unfinished = self.unfinished, {}
        for subscription in unfinished:
            subscription.pump()

    def tick(self) -> None:
        """Every `limits.TICK_S`: who has been behind for too long is stalled."""
        for subscription, ticks in list(self._behind.items()):
            self._behind[subscription] = ticks + 1
            if ticks >= HOLD_TICKS_MAX:
                subscription.pace = SubscriberPace.STALLED
                self._not_behind(subscription)

    def _not_behind(self, subscription: Paced) -> None:
        self._behind.pop(subscription, None)
        if not self._behind and self._held:
            held, self._held = self._held, {}
            for origin in held:
                origin_called(origin, origin.go_on)
