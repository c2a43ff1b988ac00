"""Deliver retained messages to one client in parts, as fast as the client accepts them.

A filter such as ``+/+/x`` visits every topic name and may find few matches; a SUBSCRIBE may have a thousand filters. So
at most `RETAINED_STEPS_MAX` names are visited in one turn of the loop, and messages are not collected ahead of the
client's credit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from bridge.message import Run, Stored, is_from
from edge.broker.limits import RETAINED_STEPS_MAX
from edge.broker.model.interfaces import Subscription
from edge.broker.mqtt.events import SubscriptionRequest


class RetainedReader(Protocol):
    """A new subscription that gets retained messages (implemented by `edge.broker.mqtt.session.Subscriber`)."""

    name: str
    request: SubscriptionRequest
    identifiers: tuple[int, ...]

    @property
    def credit(self) -> int:
        """Number of messages that it accepts now."""
        ...

    def send(
        self,
        subscription: Subscription,
        stored: Stored,
        *,
        qos_max: int,
        identifiers: tuple[int, ...],
        retain: bool,
    ) -> None:
        """Send the messages of a run to the client with this RETAIN flag."""
        ...


class RetainedDelivery:
    """Pending retained messages of a client's new subscriptions, by filter. A repeated SUBSCRIBE starts again."""

    __slots__ = ("_paused", "_walks")

    def __init__(self) -> None:
        self._walks: dict[str, tuple[RetainedReader, Subscription, Iterator[Run | None]]] = {}
        self._paused = False
        """True until the next turn of the loop."""

    def add(self, subscriber: RetainedReader, subscription: Subscription, walk: Iterator[Run | None]) -> None:
        """Add a subscription. `walk` yields a run to send, or None for a name without a retained message."""
        self._walks[subscriber.request.filter] = (subscriber, subscription, walk)

    def next_turn(self) -> None:
        """Continue in the next turn of the loop."""
        self._paused = False

    def send(self, subscribers: Mapping[str, RetainedReader], continue_soon: Callable[[], None]) -> bool:
        """Send messages as credit and this turn allow. Return True if nothing is left.

        `subscribers`: those of the client by filter. `continue_soon` requests the next turn of the loop.
        """
        steps = RETAINED_STEPS_MAX
        while self._walks and not self._paused:
            pattern, (subscriber, subscription, walk) = next(iter(self._walks.items()))
            if subscribers.get(pattern) is not subscriber:
                del self._walks[pattern]  # it has been unsubscribed or replaced
                continue
            steps = self._send_one(subscriber, subscription, walk, steps)
            if not steps:
                self._paused = True
                continue_soon()
            elif subscriber.credit <= 0:
                return False
            else:
                del self._walks[pattern]
        return not self._walks

    def _send_one(
        self, subscriber: RetainedReader, subscription: Subscription, walk: Iterator[Run | None], steps: int
    ) -> int:
        """Send messages of one walk. Return the steps left: above 0 at the end of the walk or without credit."""
        if subscriber.credit <= 0:
            return steps
        request = subscriber.request
        for run in walk:
            steps -= 1
            if run is not None and not (request.no_local and is_from(run, subscriber.name)):  # [MQTT-3.8.3-3]
                one = Stored(-1, 0, run)
                subscriber.send(subscription, one, qos_max=request.qos, identifiers=subscriber.identifiers, retain=True)
                if subscriber.credit <= 0:
                    return max(steps, 1)
            if steps <= 0:
                return 0
        return steps
