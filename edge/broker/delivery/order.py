"""The order of a queue, as the subscription of its log uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.message import Stored
from edge.broker.model.interfaces import Consumer


class Order(Protocol):
    """Decides who gets what, and when, where messages are not all alike to all consumers (`queue.QueueOrder`)."""

    @property
    def serves(self) -> bool:
        """It serves the consumers now; else they get what comes, as it comes."""
        ...

    @property
    def remembers(self) -> bool:
        """It knows of an order that is nowhere else."""
        ...

    def arrived(self, stored: Stored) -> bool:
        """A run was committed; False when it is to be delivered as it comes."""
        ...

    def serve(self) -> bool:
        """Deliver what can be delivered; False when the reason to do so has gone."""
        ...

    @property
    def idle_now(self) -> bool:
        """While it serves, as `model.interfaces.Subscription.idle_now`."""
        ...

    def joined(self, consumer: Consumer) -> None:
        """A consumer has come."""
        ...

    def left(self, consumer: Consumer) -> None:
        """A consumer is going."""
        ...

    def ended(self, consumer: Consumer) -> None:
        """A consumer raised: it gets nothing more, and is going."""
        ...

    def taken(self, first: int, last: int) -> None:
        """These are not to be delivered any more."""
        ...

    def returned(self, first: int, last: int) -> None:
        """These may be delivered again."""
        ...

    def claims(self, runs: Sequence[Stored]) -> bool:
        """True when it reads these by itself: they are not to be delivered as they come."""
        ...

    def begin_anew(self) -> None:
        """Whatever is remembered may be wrong."""
        ...
