"""Connect one HTTP request to the router: an origin with awaited answers, and a consumer of one message."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bridge.message import Stored
from edge.broker.delivery.pattern import Joinable
from edge.broker.http.messages import HttpMessage, runs_of
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router


class PublishRequest(Origin):
    """Origin of the messages of one request. `answered` is done when all of them are answered."""

    def __init__(self, name: str, count: int, user: str = "") -> None:
        """`name`: device. The tokens are the indexes ``0 <= i < count`` of the messages."""
        self.name = name
        self.user = user
        self.refusals: dict[int, Refusal] = {}
        self.unrouted = 0
        """Accepted messages without a subscriber."""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = set(range(count))

    def publish(self, router: Router, messages: Sequence[HttpMessage]) -> None:
        """Publish all messages in one turn of the loop, so that one commit stores or refuses them together."""
        for run, places in runs_of(messages, self.name):
            router.publish(Publication(self, run, places))

    def accepted(self, tokens: Sequence[int]) -> None:
        self._done(tokens)

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        self.unrouted += len(tokens)
        self._done(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.refusals.update(dict.fromkeys(tokens, why))
        self._done(tokens)

    def _done(self, tokens: Sequence[int]) -> None:
        self._waiting.difference_update(tokens)
        if not self._waiting and not self.answered.done():
            self.answered.set_result(None)


class ReceivedMessage(NamedTuple):
    """A received message that has to be settled."""

    stored: Stored
    attempts: int
    """Failed deliveries before this one (AMQP 1.0 section 3.2.1, delivery-count)."""


class SingleReceiver(Consumer):
    """Consumer of one message, which stays in delivery until `settle`."""

    def __init__(self, name: str, user: str = "") -> None:
        self.name = name
        self.user = user
        self.received: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is a message to `take`."""
        self._message: ReceivedMessage | None = None
        self._subscription: Subscription | None = None
        self._position = -1

    @property
    def credit(self) -> int:
        return 0 if self.received.done() else 1

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        (stored,) = batch
        self._message = ReceivedMessage(stored, subscription.attempts)
        self._subscription, self._position = subscription, stored.position
        self.received.set_result(None)

    def take(self) -> ReceivedMessage:
        """Return the received message and drop its body here. Raises ValueError without one."""
        message, self._message = self._message, None
        if message is None:
            raise ValueError("no message received")
        return message

    def settle(self, outcome: DeliveryOutcome) -> None:
        """Settle the message, or stop receiving. Only the first call has an effect."""
        self.received.cancel()
        subscription, self._subscription, self._message = self._subscription, None, None
        if subscription is not None and self._position >= 0:
            subscription.settle(self, self._position, self._position, outcome)


class MessageFetch:
    """Fetches one message of an address, which stays subscribed until the message is settled."""

    def __init__(self, router: Router, receiver: SingleReceiver, address: str) -> None:
        """Subscribe to the address. Raises AddressError."""
        self.receiver = receiver
        self._router = router
        self._subscription: Joinable = router.subscriptions.subscribe(receiver, address, SubscribeOptions())
        self._settled = False

    def pump(self) -> None:
        """Deliver a waiting message."""
        self._subscription.pump()

    def settle(self, outcome: DeliveryOutcome) -> None:
        """Settle the message and unsubscribe. Only the first call has an effect."""
        if not self._settled:
            self._settled = True
            self.receiver.settle(outcome)
            self._router.subscriptions.unsubscribe(self.receiver, self._subscription, forget=False)

    async def confirmed(self) -> Refusal | None:
        """Wait until the acceptance of the message is on disk. Return why the commit failed, or None."""
        result: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def done(why: Refusal | None) -> None:
            if not result.done():
                result.set_result(why)

        self._router.when_settled(self.receiver, self._subscription, done)
        return await result
