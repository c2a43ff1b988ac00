"""Counts of messages by address: one object for each rule, which all routes of its names share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final


class AddressFlow:
    """Counts of one rule since the start. Routes and batches add to them; nothing in between looks at a message."""

    __slots__ = ("delivered", "received")

    def __init__(self) -> None:
        self.received = 0
        """Messages that publishers sent to names of the rule, also refused ones."""
        self.delivered = 0
        """Copies for live subscribers. Those of queues and durable subscriptions count there (`LogSubscription`)."""

    def add(self, messages: int, copies: int) -> None:
        """Count messages, each with this number of live subscribers."""
        self.received += messages
        self.delivered += messages * copies


UNCOUNTED: Final = AddressFlow()
"""Flow of the broker's own names, and of those that belong to no rule."""


class AddressFlows:
    """Flows by pattern of the rule."""

    def __init__(self) -> None:
        self._flows: dict[str, AddressFlow] = {}

    def of(self, pattern: str) -> AddressFlow:
        """Return the flow of a rule."""
        flow = self._flows.get(pattern)
        if flow is None:
            flow = self._flows[pattern] = AddressFlow()
        return flow

    def find(self, pattern: str) -> AddressFlow | None:
        """Return the flow of a rule; None while it has no message."""
        return self._flows.get(pattern)

    def keep_only(self, patterns: Collection[str]) -> None:
        """Forget the flows of other rules, which are configured no longer."""
        for pattern in self._flows.keys() - set(patterns):
            del self._flows[pattern]
