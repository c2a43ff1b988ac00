"""Router over the store in memory with its own clock, origins and consumers that record deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from bridge.message import Run, Stored
from edge.broker.delivery.dead_letters import DEAD_LETTERED
from edge.broker.delivery.pattern import Joinable
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model import interfaces
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from edge.broker.store.records import LedgerEntry
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

NS_PER_S = 1_000_000_000


class SilentOrigin(interfaces.Origin):
    name = "device"

    def accepted(self, tokens: Sequence[int]) -> None:
        """Ignore the answer."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Ignore the answer."""


class RecordingConsumer(RunConsumer):
    credit = 0

    def __init__(self, name: str = "c", credit: int = 1000) -> None:
        self.name = name
        self.credit = credit
        self.got: list[tuple[str, int]] = []
        self.runs: list[Run] = []
        self.last: tuple[Subscription, int] | None = None
        self.joined: Joinable | None = None

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.credit -= len(stored.run.bodies)
        self.got += [(body.decode("latin-1"), subscription.attempts) for body in stored.run.bodies]
        self.runs.append(stored.run)
        self.last = (subscription, stored.position)

    def abort(self) -> None:
        pytest.fail("delivering raised")

    def answer(self, outcome: DeliveryOutcome, count: int = 1) -> None:
        assert self.last is not None
        subscription, position = self.last
        subscription.settle(self, position, position + count - 1, outcome)


class RouterSite:
    """A router over the store in memory, with a clock of its own."""

    consumers = RecordingConsumer

    def __init__(self, **policies: AddressPolicy) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 1000.0
        self.good = False
        self.steady_s: Callable[[], float] = lambda: self.now
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        rules = [AddressRule(f"{kind.value}/#", kind) for kind in AddressType]
        self.policies = {f"{name}/#": policy for name, policy in policies.items()}
        self.table = AddressTable(rules)
        self.boot()

    def boot(self) -> None:
        self.store.commits.listeners.clear()  # drop the listeners of the process before
        self.router = Router(
            self.store,
            self.table,
            clock_ns=lambda: int(self.now * NS_PER_S),
            clock_good=lambda: self.good,
            flush_soon=lambda: None,
            policies=self.policies,
            monotonic_s=self.steady_s,
        )

    def settle_down(self, *, wait_s: float = 0.0) -> None:
        self.now += wait_s
        for _ in range(8):
            self.router.tick()
            self.router.flush()
            while self.posted:
                self.posted.popleft()()

    def send(self, address: str, *bodies: bytes, properties: bytes = b"", flags: int = 1) -> None:
        self.router.publish(Publication(SilentOrigin(), Run(address, "device", flags, properties, list(bodies)), ()))
        self.settle_down()

    def consumer(
        self, address: str, name: str = "c", *, credit: int = 1000, options: SubscribeOptions | None = None
    ) -> RecordingConsumer:
        consumer = self.consumers(name, credit)
        consumer.joined = self.router.subscriptions.subscribe(consumer, address, options or SubscribeOptions())
        consumer.joined.pump()
        self.settle_down()
        return consumer

    @property
    def lost(self) -> list[LedgerEntry]:
        self.settle_down()
        return [entry for entry in self.store.ledger.entries(0, 1000) if not entry.reason.startswith(DEAD_LETTERED)]

    @property
    def dead_letters(self) -> list[tuple[str, int, int]]:
        """Return (reason, first, last) of the entries of the ledger for dead letters."""
        self.settle_down()
        entries = [entry for entry in self.store.ledger.entries(0, 1000) if entry.reason.startswith(DEAD_LETTERED)]
        return [(entry.reason.removeprefix(DEAD_LETTERED), entry.first, entry.last) for entry in entries]

    def unacknowledged(self, address: str) -> int:
        """Return the count of messages of a queue that are not done."""
        self.settle_down(wait_s=1.0)
        queue = self.router.queues[address]
        record = self.store.cursors.record(queue.cursor)
        done = record.position + sum(last - first + 1 for first, last in record.acknowledged)
        return self.store.logs.bounds(queue.log)[1] - done


def attempts(count: int, **more: float) -> AddressPolicy:
    return AddressPolicy(redelivery=Redelivery(attempts_max=count, **more), deadletter="deadletter/dead")


def expiry(seconds: int) -> bytes:
    return encode_run(Properties(message_expiry_interval_s=seconds))


def bodies_of(consumer: RecordingConsumer) -> list[str]:
    return [name for name, _ in consumer.got]
