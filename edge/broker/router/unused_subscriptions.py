"""Durable subscriptions without a client: since when, and how they end.

A client ends its durable subscription of AMQP by closing the link. A client that never returns leaves the subscription,
and all messages kept for it. So the time since which no client holds it is stored. After the timeout of its client (of
the terminus, AMQP 1.0 section 3.5.3), or `Limits.subscription_unused_s`, the subscription ends: its messages are
dropped as usual (`delivery.dead_letters`), a piece at a time, and when that is on disk the subscription is deleted.

A client that attaches earlier continues with the remaining messages; the dropped ones are in the ledger. After a crash
the time continues with the next start.
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
    """Checks subscriptions without a client, one by one. Those of MQTT end with their sessions, a forwarder's with its
    configuration, and configured ones (``topic::name``) never."""

    def __init__(
        self,
        running: RunningTime,
        addresses: ConfiguredAddresses,
        unused_s: int,
        *,
        write: Callable[[DurableSubscription], Ticket],
        end: Callable[[DurableSubscription], object],
    ) -> None:
        """`write` writes a declaration with the open group; `end` deletes it."""
        self._running = running
        self._addresses = addresses
        self.unused_s = unused_s
        self._write = write
        self._end = end
        self.counts = False
        """True when the time of some subscription counts."""

    def kept_s(self, declaration: Declaration) -> int | None:
        """Return the seconds for which it is kept without a client; None: it does not end by itself."""
        if not declaration.lapses or self._addresses.policy_of_subscription(declaration.name) is not None:
            return None
        return min(declaration.timeout_s or self.unused_s, self.unused_s)

    def check_time(self, declaration: Declaration, left_at: int | None) -> int | None:
        """Return when to check a subscription that was left at this time: then the time is written, or it ends."""
        kept_s = self.kept_s(declaration)
        if kept_s is None:
            return None
        if left_at is None:
            return self._running.now
        return left_at + (kept_s if declaration.left_at is not None else min(kept_s, SUBSCRIPTION_LEFT_KEPT_S))

    def restore(self, declaration: Declaration) -> int | None:
        """Return the time since which a restored subscription counts as unused. It is the start for those that were
        held until then, and for those of a store without such times."""
        kept_s, now = self.kept_s(declaration), self._running.now
        if kept_s is None:
            return None
        self.counts = True
        left_at = now if declaration.left_at is None else min(declaration.left_at, now)
        return max(left_at, now + min(0, SUBSCRIPTION_ENDED_AFTER_START_S - kept_s))

    def check(self, subscription: DurableSubscription) -> None:
        """Check a subscription without a client; write or end it when that is due."""
        kept_s, now = self.kept_s(subscription.declaration), self._running.now
        if kept_s is None:
            self.keep(subscription)
            return
        if subscription.left_at is None:
            subscription.record_left(now)
            self.counts = True
        left_at = subscription.left_at if subscription.left_at is not None else now
        unused_s = now - left_at
        if unused_s >= kept_s:
            self._discard(subscription, unused_s)
        elif subscription.declaration.left_at is None and unused_s >= SUBSCRIPTION_LEFT_KEPT_S:
            self._keep(subscription, left_at)

    def keep(self, subscription: DurableSubscription) -> None:
        """Keep the messages of a subscription that a client holds, or that does not end by itself."""
        subscription.hold()
        if subscription.declaration.left_at is not None:
            self._keep(subscription, None)

    # --- inside -----------------------------------------------------------------------------------------------

    def _keep(self, subscription: DurableSubscription, left_at: int | None) -> None:
        subscription.declare(msgspec.structs.replace(subscription.declaration, left_at=left_at))
        self._running.keep()
        self._write(subscription)

    def _discard(self, subscription: DurableSubscription, unused_s: int) -> None:
        ending = subscription.ending
        if ending is None:
            subscription.discard(self._write(subscription))
        elif ending.is_done(subscription):
            name = subscription.declaration.name
            logger.warning("durable subscription %r ended: unused for %d s", name, unused_s)
            self._end(subscription)
