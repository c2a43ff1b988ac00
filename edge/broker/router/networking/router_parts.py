"""Parts of the router that its network uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge.broker.delivery import WaitingPool
from edge.broker.model.interfaces import MessageCounts
from edge.broker.model.isolation import EventListeners
from edge.broker.model.tracing import Tracer
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.subscriptions import SubscriptionRegistry


class NetworkHost(Protocol):
    """The router, as the network sees it."""

    @property
    def now_ns(self) -> Callable[[], int]:
        """UTC nanoseconds."""
        ...

    @property
    def now_s(self) -> Callable[[], float]:
        """Monotonic seconds."""
        ...

    @property
    def subscriptions(self) -> SubscriptionRegistry:
        """All subscriptions."""
        ...

    @property
    def addresses(self) -> ConfiguredAddresses:
        """Rules of the addresses."""
        ...

    @property
    def figures(self) -> MessageCounts:
        """Counts of messages."""
        ...

    @property
    def pool(self) -> WaitingPool:
        """Bytes that wait for live subscriptions."""
        ...

    @property
    def tick_listeners(self) -> EventListeners[[]]:
        """Called at each tick."""
        ...

    @property
    def address_listeners(self) -> EventListeners[[]]:
        """Called when addresses may have other types."""
        ...

    @property
    def tracer(self) -> Tracer:
        """Shows messages to operators."""
        ...

    def stamp(self) -> tuple[int, int]:
        """Return the time of reception of a run that arrives now, and its flags for the clock."""
        ...

    def forget_routes(self) -> None:
        """Forget routes, because their targets have changed."""
        ...
