"""Messages that consumers of one subscription returned: dead-lettered, or delivered again, later or to others."""

from __future__ import annotations

from typing import Protocol

from edge.broker.delivery.attempts import Attempts, delay_s
from edge.broker.delivery.consumer_group import ConsumerGroup
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.delivery.dead_lettering import DeadLettering, DeadLetteringSubscription
from edge.broker.delivery.dead_letters import DeadLetters, LossReason
from edge.broker.delivery.order import Order
from edge.broker.limits import RETURNED_WAIT_S
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import Consumer, DeliveryOutcome


class ReturnSubscription(DeadLetteringSubscription, Protocol):
    """Subscription that gets messages back."""

    group: ConsumerGroup
    exclusive: bool
    failures: Attempts
    dead_lettering: DeadLettering
    window: CursorWindow
    order: Order | None

    @property
    def policy(self) -> AddressPolicy:
        """Policy of the address."""
        ...

    def requeue(self, first: int, last: int) -> None:
        """Make these messages available again."""
        ...


class Returns:
    """Returned messages of one subscription."""

    __slots__ = ("_deadletters", "_subscription")

    def __init__(self, subscription: ReturnSubscription, deadletters: DeadLetters) -> None:
        self._subscription = subscription
        self._deadletters = deadletters

    def take(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Take messages that a consumer had and did not accept."""
        subscription = self._subscription
        uncounted = outcome is DeliveryOutcome.LOST and not subscription.policy.redelivery.counts_link_loss
        if outcome is DeliveryOutcome.UNANSWERED or uncounted:
            subscription.requeue(first, last)
        elif outcome is DeliveryOutcome.RELEASED:
            self._take_released(consumer, first, last)
        elif outcome is DeliveryOutcome.REJECTED:
            subscription.dead_lettering.discard_later(first, last, LossReason.REJECTED)
        elif outcome is DeliveryOutcome.EXPIRED:
            subscription.dead_lettering.discard_later(first, last, LossReason.EXPIRED)
        elif outcome is DeliveryOutcome.TOO_LARGE:
            self._exclude(consumer, first, last)
        else:
            undeliverable = outcome is DeliveryOutcome.MODIFIED_UNDELIVERABLE
            for position in range(first, last + 1):
                self._take_failed(consumer, position, undeliverable=undeliverable)

    def keeps_after_loss(self, position: int) -> bool:
        """Count a failed delivery of a message that stays with its consumer. Return False when it was the last attempt,
        and the message is dead-lettered."""
        redelivery = self._subscription.policy.redelivery
        return not redelivery.counts_link_loss or not self._count(position)

    def allow_again(self, now_s: float) -> bool:
        """Let consumers get messages again that they returned long enough ago. Return False when there are none."""
        subscription = self._subscription
        forgiven = subscription.failures.allow_due(now_s)
        if subscription.order is not None:
            for position in forgiven:
                if subscription.window.available(position, position):
                    subscription.order.returned(position, position)
        return bool(forgiven)

    # --- inside -----------------------------------------------------------------------------------------------

    def _count(self, position: int) -> bool:
        """Count a failed delivery; return True when it was the last attempt, and the message is dead-lettered."""
        subscription = self._subscription
        self._deadletters.wake_later(subscription)
        attempts, attempts_max = subscription.failures.failed(position), subscription.policy.redelivery.attempts_max
        if attempts_max is None or attempts < attempts_max:
            return False
        subscription.dead_lettering.discard_later(position, position, LossReason.ATTEMPTS)
        return True

    def _take_failed(self, consumer: Consumer, position: int, *, undeliverable: bool) -> None:
        subscription = self._subscription
        if self._count(position):
            return
        if not undeliverable:
            self._requeue_later(consumer, position)
            return
        subscription.failures.exclude(position, consumer)
        if subscription.exclusive:
            subscription.dead_lettering.discard_later(position, position, LossReason.UNDELIVERABLE)
        else:
            subscription.requeue(position, position)

    def _take_released(self, consumer: Consumer, first: int, last: int) -> None:
        """Deliver these again, to another consumer if there is one; they have not failed."""
        subscription = self._subscription
        if subscription.policy.redelivery.delay_s <= 0 and not self._has_others(consumer):
            subscription.requeue(first, last)
            return
        self._deadletters.wake_later(subscription)
        for position in range(first, last + 1):
            subscription.failures.released(position)
            self._requeue_later(consumer, position)

    def _requeue_later(self, consumer: Consumer, position: int) -> None:
        """Deliver a message again after the delay of the address, to another consumer if there is one."""
        subscription, due_s = self._subscription, self._deadletters.now_s()
        redelivery, failures = subscription.policy.redelivery, subscription.failures
        if redelivery.delay_s > 0:
            due_s += delay_s(redelivery, failures.tries(position))
        if self._has_others(consumer):
            failures.pass_over(position, consumer, due_s + RETURNED_WAIT_S)
        if redelivery.delay_s > 0:
            failures.delay(position, due_s)
        else:
            subscription.requeue(position, position)

    def _has_others(self, consumer: Consumer) -> bool:
        """Return True when this consumer and others are present."""
        group = self._subscription.group
        return len(group.consumers) > 1 and consumer in group

    def _exclude(self, consumer: Consumer, first: int, last: int) -> None:
        """Keep messages that are too large for this consumer for others; dead-letter them if no other one will come."""
        subscription = self._subscription
        if subscription.exclusive:
            self._deadletters.wake_later(subscription)
            subscription.dead_lettering.discard_later(first, last, LossReason.UNDELIVERABLE)
            return
        for position in range(first, last + 1):
            subscription.failures.exclude(position, consumer)
        subscription.requeue(first, last)
