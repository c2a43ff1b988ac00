"""Back-pressure of live subscribers: publishers wait for a subscriber that reads, but not fast enough.

A live subscription promises nothing, so it could just drop messages. Yet a subscriber that is a little slower than a
burst would lose messages for no good reason. So its publishers are held back while more than `LIVE_BEHIND_BYTES_MAX`
waits for it. A subscriber that has not caught up within `LIVE_HOLD_S_MAX` is *stalled*: its publishers continue, and
messages beyond its limit are dropped and counted until it has read everything. Publishers to other addresses are not
affected.

Two clients that flood each other at QoS 1 hold each other back, acknowledgements included; this ends the same way.
"""

from __future__ import annotations

import enum
from typing import Protocol

from edge.broker.limits import LIVE_HOLD_S_MAX, TICK_S
from edge.broker.model.interfaces import Origin
from edge.broker.model.isolation import call_origin

HOLD_TICKS_MAX = round(LIVE_HOLD_S_MAX / TICK_S)


class SubscriberPace(enum.Enum):
    """Pace of a live subscriber."""

    KEEPING_UP = "keeping up"
    BEHIND = "behind: its publishers wait"
    STALLED = "stalled: messages beyond its limit are dropped"


class PacedSubscription(Protocol):
    """Subscription for which publishers may be held back."""

    pace: SubscriberPace


class BackPressure:
    """Subscriptions that are behind, and the origins held back for them."""

    __slots__ = ("_behind", "_held")

    def __init__(self) -> None:
        self._behind: dict[PacedSubscription, int] = {}
        """Number of ticks that each has been behind."""
        self._held: dict[Origin, None] = {}

    def press(self, subscription: PacedSubscription, origin: Origin | None) -> None:
        """Hold back `origin`, which sends to a `subscription` that is behind, until all have caught up or stalled."""
        subscription.pace = SubscriberPace.BEHIND
        self._behind.setdefault(subscription, 0)
        if origin is not None and origin not in self._held:
            self._held[origin] = None
            call_origin(origin, origin.pause_publishing)

    def relieve(self, subscription: PacedSubscription) -> None:
        """Note that `subscription` has caught up, or has ended."""
        subscription.pace = SubscriberPace.KEEPING_UP
        self._not_behind(subscription)

    def forget(self, origin: Origin) -> None:
        """Forget an origin that has ended."""
        self._held.pop(origin, None)

    def tick(self) -> None:
        """Mark subscriptions that have been behind for too long as stalled. Called every `limits.TICK_S`."""
        for subscription, ticks in list(self._behind.items()):
            self._behind[subscription] = ticks + 1
            if ticks >= HOLD_TICKS_MAX:
                subscription.pace = SubscriberPace.STALLED
                self._not_behind(subscription)

    def _not_behind(self, subscription: PacedSubscription) -> None:
        self._behind.pop(subscription, None)
        if not self._behind and self._held:
            held, self._held = self._held, {}
            for origin in held:
                call_origin(origin, origin.resume_publishing)
