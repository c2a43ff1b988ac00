"""Messages that were delivered and are not settled, by consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges

_NOTHING: Final[dict[Consumer, Ranges]] = {}
"""Of all that have delivered nothing yet; never changed."""


class Outstanding:
    """See the module's docstring. A consumer that left may still have something here, until it has settled it."""

    __slots__ = ("_by_consumer", "_leaving")

    def __init__(self) -> None:
        self._by_consumer = _NOTHING
        self._leaving: set[Consumer] | None = None
        """Consumers that left and still have something; None: there are none, as nearly always."""

    @property
    def count(self) -> int:
        """Messages."""
        return sum(held.count for held in self._by_consumer.values())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Ranges of positions, those of each consumer ascending."""
        return (part for held in self._by_consumer.values() for part in held)

    def add(self, consumer: Consumer, first: int, last: int) -> None:
        """These are being delivered to a consumer."""
        held = self._by_consumer.get(consumer)
        if held is None:
            if self._by_consumer is _NOTHING:
                self._by_consumer = {}
            held = self._by_consumer[consumer] = Ranges()
        held.add(first, last)

    def holds(self, consumer: Consumer, position: int) -> bool:
        """The message is outstanding to the consumer."""
        held = self._by_consumer.get(consumer)
        return held is not None and position in held

    def remove(self, consumer: Consumer, first: int, last: int) -> list[tuple[int, int]]:
        """The consumer answers for these; returns what of them was outstanding to it."""
        held = self._by_consumer.get(consumer)
        if held is None:
            return []
        parts = held.take(first, last)
        if self._leaving is not None and not held and consumer in self._leaving:
            self._leaving.discard(consumer)
            del self._by_consumer[consumer]
        return parts

    def returns(self, consumer: Consumer) -> None:
        """The consumer is there (again)."""
        if self._leaving is not None:
            self._leaving.discard(consumer)

    def leave(self, consumer: Consumer) -> None:
        """The consumer is away, and may still settle what is with it."""
        if not self._by_consumer.get(consumer):
            self._by_consumer.pop(consumer, None)
            return
        if self._leaving is None:
            self._leaving = set()
        self._leaving.add(consumer)

    def drop(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The consumer is gone; returns what was with it."""
        self.returns(consumer)
        return list(self._by_consumer.pop(consumer, ()))
