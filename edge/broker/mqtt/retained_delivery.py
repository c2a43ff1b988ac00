"""Retained messages on their way to one client: looked for and sent a part at a time, as the client takes them.

A filter such as ``+/+/x`` looks at every topic name there is and finds little; a SUBSCRIBE may have a thousand of them.
So no more than `RETAINED_STEPS_MAX` names are looked at in one turn of the loop, others have theirs in between, and
nothing is gathered that the client does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from bridge.message import Run, Stored, is_from
from edge.broker.limits import RETAINED_STEPS_MAX
from edge.broker.model.interfaces import Subscription
from edge.broker.mqtt.events import SubscriptionRequest


class RetainedReader(Protocol):
    """A new subscription that gets retained messages (`edge.broker.mqtt.session.Subscriber`)."""

    name: str
    request: SubscriptionRequest
    identifiers: tuple[int, ...]

    @property
    def credit(self) -> int:
        """Messages it can take now."""
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
        """Send the messages of a run to the client; `retain` is the RETAIN flag they carry."""
        ...


class RetainedDelivery:
    """What a client's new subscriptions still wait for, by filter: one that is made again begins anew."""

    __slots__ = ("_goes_on", "_walks")

    def __init__(self) -> None:
        self._walks: dict[str, tuple[RetainedReader, Subscription, Iterator[Run | None]]] = {}
        self._goes_on = False
        """The rest is for the next turn of the loop."""

    def add(self, subscriber: RetainedReader, subscription: Subscription, walk: Iterator[Run | None]) -> None:
        """`walk` yields a run that is to be sent, or None for a name without one."""
        self._walks[subscriber.request.filter] = (subscriber, subscription, walk)

    def next_turn(self) -> None:
        """The turn that was asked for has come."""
        self._goes_on = False

    def send(self, subscribers: Mapping[str, RetainedReader], go_on_soon: Callable[[], None]) -> bool:
        """Go on where the client has room and this turn allows; True when nothing is left. `subscribers` are those of
        the client by filter; `go_on_soon` requests the next turn of the loop."""
        steps = RETAINED_STEPS_MAX
        while self._walks and not self._goes_on:
            pattern, (subscriber, subscription, walk) = next(iter(self._walks.items()))
            if subscribers.get(pattern) is not subscriber:
                del self._walks[pattern]  # it has been unsubscribed or replaced
                continue
            steps = self._send_one(subscriber, subscription, walk, steps)
            if not steps:
                self._goes_on = True
                go_on_soon()
            elif subscriber.credit <= 0:
                return False
            else:
                del self._walks[pattern]
        return not self._walks

    def _send_one(
        self, subscriber: RetainedReader, subscription: Subscription, walk: Iterator[Run | None], steps: int
    ) -> int:
        """Returns the steps left: more than 0 when the walk has ended or the client has no room."""
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
