"""Consumer that selects bodies by their letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.message import Run, Stored
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.router.router import SubscribeOptions
from tests.support.router_site import RecordingConsumer, RouterSite


class SelectingConsumer(RecordingConsumer):
    """Consumer that wants bodies with one of its letters, and counts the bodies it examines."""

    def __init__(self, letters: str, *, name: str = "picky", credit: int = 1000) -> None:
        super().__init__(name, credit)
        self.text = letters
        self.selection = self
        self.asked = 0
        self.positions: list[tuple[Subscription, int]] = []

    def wanted(self, run: Run) -> Sequence[bool]:
        self.asked += len(run.bodies)
        return [any(ord(letter) in one for letter in self.text) for one in run.bodies]

    def take(self, subscription: Subscription, stored: Stored) -> None:
        super().take(subscription, stored)
        self.positions += [(subscription, stored.position + i) for i in range(len(stored.run.bodies))]

    def settle_all(self, outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED) -> None:
        for subscription, position in self.positions:
            subscription.settle(self, position, position, outcome)
        self.positions.clear()


def attach(site: RouterSite, consumer: Any, address: str = "queue/a") -> Any:
    consumer.joined = site.router.subscriptions.subscribe(consumer, address, SubscribeOptions())
    consumer.joined.pump()
    site.settle_down()
    return consumer


def detach(site: RouterSite, consumer: Any) -> None:
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
    site.settle_down()
