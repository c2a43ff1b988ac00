"""One HTTP request towards the router: an origin whose answers are awaited, a consumer of one message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bridge.message import Stored
from edge.broker.http.messages import Message, runs_of
from edge.broker.model.interfaces import Consumer, Origin, Outcome, Refusal, Subscription
from edge.broker.router.router import Router


class PublishRequest(Origin):
    """Origin of one request's messages; `answered` is done when every one of them has been answered."""

    def __init__(self, name: str, count: int, user: str = "") -> None:
        """`name` of the device; tokens are the places ``0 <= i < count`` of the messages."""
        self.name = name
        self.user = user
        self.refusals: dict[int, Refusal] = {}
        self.unrouted = 0
        """Messages that were accepted and that no subscriber gets."""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = set(range(count))

    def publish(self, router: Router, messages: Sequence[Message]) -> None:
        """All in one turn of the loop: what is stored joins one commit, so it is kept or refused as one."""
        for run, places in runs_of(messages, self.name):
            router.publish(self, run, places)

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
    """A message that is ours until it is settled."""

    subscription: Subscription
    stored: Stored


class SingleReceiver(Consumer):
    """Consumer of one message, which is outstanding to it until `settle`."""

    def __init__(self, name: str, user: str = "") -> None:
        self.name = name
        self.user = user
        self.received: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()

    @property
    def credit(self) -> int:
        return 0 if self.received.done() else 1

    def deliver(self, subscription: Subscription, stored: Stored) -> None:
        self.received.set_result(ReceivedMessage(subscription, stored))

    def settle(self, outcome: Outcome) -> None:
        """Answer for the message, if there is one; no other comes."""
        if not self.received.done():
            self.received.cancel()
            return
        if self.received.cancelled():
            return
        subscription, stored = self.received.result()
        if stored.position >= 0:
            subscription.settle(self, stored.position, stored.position, outcome)
