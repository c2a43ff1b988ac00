"""Consumer that handles each run of a batch by itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bridge.message import Stored
from edge.broker.model import interfaces


class RunConsumer(interfaces.Consumer):
    """Base class of consumers in tests."""

    def deliver(self, subscription: Any, batch: Collection[Stored]) -> None:
        messages = sum(len(stored.run.bodies) for stored in batch)
        assert 1 <= messages <= self.credit, f"{messages} messages for a credit of {self.credit}"
        for stored in batch:
            self.take(subscription, stored)

    def take(self, subscription: Any, stored: Stored) -> None:
        """Take one run."""
        raise NotImplementedError
