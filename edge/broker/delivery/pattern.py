"""A consumer of every queue (or anycast address) a filter matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from edge.broker.model.interfaces import Consumer, Outcome, Subscription


class Joinable(Subscription, Protocol):
    """A subscription that consumers come to and leave."""

    def join(self, consumer: Consumer) -> None:
        """Deliver to `consumer` as well. Idempotent."""
        ...

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """Deliver no more to `consumer`; `keep`: what is outstanding to it waits for its return."""
        ...


class PatternSubscription:
    """All subscriptions a filter matches as one, those to come included (the router joins their consumers)."""

    __slots__ = ("_complete", "_parts", "pattern")
    attempts = 0

    def __init__(
        self, pattern: str, parts: Callable[[], Iterator[Joinable]], complete: Callable[[], bool] = lambda: True
    ) -> None:
        """`parts` gives what matches at the moment; `complete`: all that has something is among them."""
        self.pattern = pattern
        self._parts = parts
        self._complete = complete

    def join(self, consumer: Consumer) -> None:
        for part in self._parts():
            part.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        for part in self._parts():
            part.leave(consumer, keep=keep)

    def pump(self) -> None:
        for part in self._parts():
            part.pump()

    @property
    def idle_now(self) -> bool:
        return self._complete() and all(part.idle_now for part in self._parts())

    def settle(self, consumer: Consumer, first: int, last: int, outcome: Outcome) -> None:
        """Deliveries carry the queue they came from; settle there."""
        raise TypeError("settle on the subscription a delivery was made for")
