"""The consumers of one subscription, and helpers that every kind of subscription needs to serve them."""

from __future__ import annotations

from collections.abc import Collection

from bridge.message import Stored
from edge.broker.delivery.batches import SETTLED
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.isolation import end_consumer

RETURNED = frozenset(
    (DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED, DeliveryOutcome.UNANSWERED, DeliveryOutcome.LOST)
)
"""Outcomes that return the message for any consumer."""


def part_of(stored: Stored, start: int, stop: int) -> Stored:
    """Return the messages ``start <= i < stop`` of a stored run, with their own position and sequence."""
    if start <= 0 and stop >= len(stored.run.bodies):
        return stored
    position = stored.position + start if stored.position >= 0 else SETTLED
    return Stored(position, stored.sequence + start, stored.run.part(start, stop))


class ConsumerGroup:
    """The consumers of one subscription, served in rotation. A consumer that raises on a read of its credit is
    ended."""

    __slots__ = ("consumers",)

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []  # nearly always one: a list takes 64 bytes, a deque 760

    def __bool__(self) -> bool:
        return bool(self.consumers)

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self.consumers

    def join(self, consumer: Consumer) -> None:
        """Add a consumer. Idempotent."""
        if not self.consumers:
            self.consumers = [consumer]  # appending would allocate room for more
        elif consumer not in self.consumers:
            self.consumers.append(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Idempotent."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    @property
    def credit(self) -> int:
        total = 0
        for consumer in self.consumers:
            try:
                total += consumer.credit
            except Exception as error:
                self.end(consumer, error)
                return self.credit
        return total

    def without_credit(self) -> list[Consumer]:
        """Return the consumers without credit."""
        found: list[Consumer] = []
        for consumer in list(self.consumers):
            try:
                if consumer.credit_without(self.consumers) <= 0:
                    found.append(consumer)
            except Exception as error:
                self.end(consumer, error)
        return found

    def end(self, consumer: Consumer, error: Exception) -> None:
        """End a consumer that raised: it gets nothing more, and keeps its messages until its connection has ended."""
        self.leave(consumer)
        end_consumer(consumer, error)

    def next(self) -> tuple[Consumer, int] | None:
        """Return the next consumer with credit, and its credit, and move it to the end; None when no consumer has
        credit."""
        for i, consumer in enumerate(self.consumers):
            try:
                credit = consumer.credit
            except Exception as error:
                self.end(consumer, error)
                return self.next()
            if credit > 0:
                self.rotate(i + 1)
                return consumer, credit
        return None

    def next_but(self, excluded: Collection[Consumer] | None) -> tuple[Consumer | None, int]:
        """Return the result of `next` without the excluded consumers: (None, 0) when none has credit, (None, -1) when
        all are excluded."""
        allowed = False
        for i, consumer in enumerate(self.consumers):
            if excluded is not None and consumer in excluded:
                continue
            allowed = True
            try:
                credit = consumer.credit if not excluded else consumer.credit_without(excluded)
            except Exception as error:
                self.end(consumer, error)
                return self.next_but(excluded) if self.consumers else (None, 0)
            if credit > 0:
                self.rotate(i + 1)
                return consumer, credit
        return None, 0 if allowed else -1

    def rotate(self, count: int) -> None:
        """Move the first `count` consumers to the end."""
        consumers = self.consumers
        if count < len(consumers):
            consumers[:] = consumers[count:] + consumers[:count]

    def share(self, waiting: int, credit: int) -> int:
        """Return how many of `waiting` messages go to one consumer: an even share, and at most its credit."""
        even = -(-waiting // len(self.consumers)) if len(self.consumers) > 1 else waiting
        return min(even, credit)
