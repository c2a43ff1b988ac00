"""The order of a queue, as the subscription of its log uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.message import Stored
from edge.broker.model.interfaces import Consumer


class Order(Protocol):
    """Delivery order of a queue with messages that differ for its consumers (`queue.QueueOrder`)."""

    @property
    def serves(self) -> bool:
        """True while it serves the consumers; otherwise they get messages in order of arrival."""
        ...

    @property
    def has_state(self) -> bool:
        """True while it has state that is stored nowhere else."""
        ...

    def arrived(self, stored: Stored) -> bool:
        """Take a committed run. Return False when it is to be delivered in order of arrival."""
        ...

    def serve(self) -> bool:
        """Deliver what can be delivered. Return False when the order can close."""
        ...

    @property
    def idle_now(self) -> bool:
        """True when nothing more can be delivered now (`model.interfaces.Subscription.idle_now`)."""
        ...

    def joined(self, consumer: Consumer) -> None:
        """Add a consumer."""
        ...

    def left(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        ...

    def ended(self, consumer: Consumer) -> None:
        """Remove a consumer that raised; it gets nothing more."""
        ...

    def taken(self, first: int, last: int) -> None:
        """Forget messages that must no longer be delivered."""
        ...

    def returned(self, first: int, last: int) -> None:
        """Note messages that may be delivered again."""
        ...

    def claims(self, runs: Sequence[Stored]) -> bool:
        """Return True when it reads these runs by itself, so that they are not delivered in order of arrival."""
        ...

    def restart(self) -> None:
        """Forget everything, which may be wrong."""
        ...
