"""Durable subscriptions nobody uses: since when, and how they end.

A client ends its durable subscription of AMQP by closing the link. One that never comes back leaves it, and all that is
kept for it. So it is known, on disk, since when nobody holds a subscription; when that is as long as its client said
(the timeout of the terminus, AMQP 1.0 section 3.5.3), or `Limits.subscription_unused_s`, it ends: what lies in it is
given up as all is (`delivery.dead_letters`), a piece at a time, and when that is on disk the subscription goes.

Who attaches to it before has it as it is: it goes on with what is left, and the ledger has the rest. A crash changes
nothing: it is unused for as long after the next start, and ends then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from edge.broker.delivery.durable import Declaration, DurableSubscription
from edge.broker.limits import SUBSCRIPTION_ENDED_AFTER_START_S, SUBSCRIPTION_LEFT_KEPT_S
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.running_time import RunningTime
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)


class UnusedSubscriptions:
    """Looks at those nobody holds, one by one. Those of MQTT end with their sessions, a forwarder's with its
    configuration, and one the configuration names (``topic::name``) never."""

    def __init__(
        self,
        running: RunningTime,
        addresses: ConfiguredAddresses,
        unused_s: int,
        *,
        write: Callable[[DurableSubscription], Ticket],
        end: Callable[[DurableSubscription], object],
    ) -> None:
        """`write` has a declaration written with the open group; `end` deletes it."""
        self._running = running
        self._addresses = addresses
        self.unused_s = unused_s
        self._write = write
        self._end = end
        self.counts = False
        """Somebody's time counts."""

    def kept_s(self, declaration: Declaration) -> int | None:
        """How long it is kept while nobody holds it; None: it does not end by itself."""
        if not declaration.lapses or self._addresses.policy_of_subscription(declaration.name) is not None:
            return None
        return min(declaration.timeout_s or self.unused_s, self.unused_s)

    def look_at(self, declaration: Declaration, left_at: int | None) -> int | None:
        """When something is to be done about one left at this time: it is written when that was, or it ends."""
        kept_s = self.kept_s(declaration)
        if kept_s is None:
            return None
        if left_at is None:
            return self._running.now
        return left_at + (kept_s if declaration.left_at is not None else min(kept_s, SUBSCRIPTION_LEFT_KEPT_S))

    def restored(self, declaration: Declaration) -> int | None:
        """Since when one counts that was found at the start. One that was held until then counts from the start, as do
        those of a store that knows of no such time."""
        kept_s, now = self.kept_s(declaration), self._running.now
        if kept_s is None:
            return None
        self.counts = True
        left_at = now if declaration.left_at is None else min(declaration.left_at, now)
        return max(left_at, now + min(0, SUBSCRIPTION_ENDED_AFTER_START_S - kept_s))

    def look(self, subscription: DurableSubscription) -> None:
        """Nobody holds it: do what is to be done by now."""
        kept_s, now = self.kept_s(subscription.declaration), self._running.now
        if kept_s is None:
            self.held(subscription)
            return
        if subscription.left_at is None:
            subscription.record_left(now)
            self.counts = True
        left_at = subscription.left_at if subscription.left_at is not None else now
        unused_s = now - left_at
        if unused_s >= kept_s:
            self._give_up(subscription, unused_s)
        elif subscription.declaration.left_at is None and unused_s >= SUBSCRIPTION_LEFT_KEPT_S:
            self._keep(subscription, left_at)

    def held(self, subscription: DurableSubscription) -> None:
        """Somebody holds it, or it does not end by itself: what is left in it stays."""
        subscription.hold()
        if subscription.declaration.left_at is not None:
            self._keep(subscription, None)

    # --- inside -----------------------------------------------------------------------------------------------

    def _keep(self, subscription: DurableSubscription, left_at: int | None) -> None:
        subscription.declare(msgspec.structs.replace(subscription.declaration, left_at=left_at))
        self._running.keep()
        self._write(subscription)

    def _give_up(self, subscription: DurableSubscription, unused_s: int) -> None:
        ending = subscription.ending
        if ending is None:
            subscription.give_up(self._write(subscription))
        elif ending.is_over(subscription):
            name = subscription.declaration.name
            logger.warning("durable subscription %r ends: nobody has used it for %d s", name, unused_s)
            self._end(subscription)
