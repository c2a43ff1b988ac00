"""Delivered messages that are not settled, by consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges

_EMPTY: Final[dict[Consumer, Ranges]] = {}
"""Shared by all that have delivered nothing yet; never changed."""


class Outstanding:
    """Unsettled deliveries of one subscription. A consumer that left may still have some, until it has settled them."""

    __slots__ = ("_by_consumer", "_leaving", "delivered")

    def __init__(self) -> None:
        self.delivered = 0
        """Messages added so far; a redelivery counts again."""
        self._by_consumer = _EMPTY
        self._leaving: set[Consumer] | None = None
        """Consumers that left with unsettled deliveries; None: no consumer, which is usual."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(held.count for held in self._by_consumer.values())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over ranges of positions, ascending for each consumer."""
        return (part for held in self._by_consumer.values() for part in held)

    def add(self, consumer: Consumer, first: int, last: int) -> None:
        """Add messages that are being delivered to a consumer."""
        held = self._by_consumer.get(consumer)
        if held is None:
            if self._by_consumer is _EMPTY:
                self._by_consumer = {}
            held = self._by_consumer[consumer] = Ranges()
        held.add(first, last)
        self.delivered += last - first + 1

    def holds(self, consumer: Consumer, position: int) -> bool:
        """Return True when the message is outstanding to the consumer."""
        held = self._by_consumer.get(consumer)
        return held is not None and position in held

    def remove(self, consumer: Consumer, first: int, last: int) -> list[tuple[int, int]]:
        """Remove settled messages. Return the ranges that were outstanding to the consumer."""
        held = self._by_consumer.get(consumer)
        if held is None:
            return []
        parts = held.take(first, last)
        if self._leaving is not None and not held and consumer in self._leaving:
            self._leaving.discard(consumer)
            del self._by_consumer[consumer]
        return parts

    def pass_on(self, giver: Consumer, taker: Consumer, position: int) -> bool:
        """Let a message that is outstanding to `giver` be outstanding to `taker`. Return False if it is not."""
        found = self.remove(giver, position, position)
        for first, last in found:
            self.add(taker, first, last)
            self.delivered -= 1  # it is not delivered again
        return bool(found)

    def absent(self) -> list[Consumer]:
        """Return the consumers that left with unsettled deliveries."""
        return list(self._leaving or ())

    def reattach(self, consumer: Consumer) -> None:
        """Note that the consumer is back."""
        if self._leaving is not None:
            self._leaving.discard(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Note that the consumer is away, and may still settle its messages."""
        if not self._by_consumer.get(consumer):
            self._by_consumer.pop(consumer, None)
            return
        if self._leaving is None:
            self._leaving = set()
        self._leaving.add(consumer)

    def drop(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Remove a consumer that has left. Return the ranges that were outstanding to it."""
        self.reattach(consumer)
        return list(self._by_consumer.pop(consumer, ()))
