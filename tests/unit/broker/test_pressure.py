"""Publishers wait for a slow live subscriber, for a limited time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bridge.message import Run
from edge.broker.delivery.batches import offer_of
from edge.broker.delivery.pressure import SubscriberPace
from edge.broker.delivery.ready import ReadySet
from edge.broker.delivery.transient import TransientSubscription, WaitingPool
from edge.broker.limits import LIVE_BEHIND_BYTES_MAX, LIVE_HOLD_S_MAX, LIVE_PUMP_BYTES_MAX, TICK_S
from edge.broker.model import interfaces
from edge.broker.model.interfaces import Refusal
from tests.support.run_consumer import RunConsumer

SIZE = 64 * 1024
BODY = bytes(SIZE - len("a"))
RUNS = LIVE_BEHIND_BYTES_MAX // SIZE


class Publisher(interfaces.Origin):
    """Origin that records its answers."""

    name = "publisher"

    def __init__(self) -> None:
        self.held = False

    def accepted(self, tokens: Sequence[int]) -> None:
        raise AssertionError("nothing was asked")

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError("nothing was asked")

    def pause_publishing(self) -> None:
        self.held = True

    def resume_publishing(self) -> None:
        self.held = False


class Reader(RunConsumer):
    """Consumer; the test sets its credit."""

    name = "reader"
    credit = 0

    def __init__(self) -> None:
        self.credit = 0
        self.bytes = 0

    def take(self, subscription: Any, stored: Any) -> None:
        self.bytes += stored.run.size


class TestPressure:
    def setup_method(self) -> None:
        self.turns: deque[Callable[[], None]] = deque()
        self.pool = WaitingPool(ReadySet(self.turns.append, time.monotonic))
        self.pressure = self.pool.pressure
        self.reader, self.publisher = Reader(), Publisher()
        self.subscription = TransientSubscription("a", self.pool)
        self.subscription.join(self.reader)

    def publish(self, runs: int, device: str = "publisher") -> None:
        for _ in range(runs):
            self.subscription.offer(offer_of(Run("a", device, 0, b"", [BODY]), self.publisher))

    def pace(self) -> SubscriberPace:
        return self.subscription.pace

    def is_held(self) -> bool:
        return self.publisher.held

    def read(self) -> None:
        self.reader.credit = 1 << 30
        self.subscription.pump()
        while self.turns:
            self.turns.popleft()()

    def test_publisher_is_held_until_the_subscriber_catches_up(self) -> None:
        self.publish(RUNS)
        assert not self.is_held()
        self.publish(1)
        assert self.is_held()
        self.read()
        assert not self.is_held()
        assert self.reader.bytes == (RUNS + 1) * SIZE
        assert self.subscription.dropped == 0

    def test_wait_is_limited(self) -> None:
        self.publish(RUNS + 1)
        for _ in range(round(LIVE_HOLD_S_MAX / TICK_S)):
            self.pressure.tick()
            assert self.is_held()
        self.pressure.tick()
        assert not self.is_held()
        assert self.pace() is SubscriberPace.STALLED
        self.publish(RUNS * 20)
        assert not self.is_held()
        assert self.subscription.dropped > 0
        self.read()  # it has read everything: publishers wait for it again
        assert self.pace() is SubscriberPace.KEEPING_UP

    def test_wait_ends_when_the_subscriber_leaves(self) -> None:
        self.publish(RUNS + 1)
        self.subscription.leave(self.reader)
        assert not self.is_held()
        assert self.pool.waiting_bytes == 0

    def test_client_does_not_wait_for_itself(self) -> None:
        self.publish(RUNS + 1, device="reader")
        assert not self.is_held()

    def test_delivery_is_in_portions(self) -> None:
        self.publish(RUNS + 1)
        self.reader.credit = 1 << 30
        self.subscription.pump()
        assert self.reader.bytes == LIVE_PUMP_BYTES_MAX
        assert self.subscription.pump in self.pool.ready
