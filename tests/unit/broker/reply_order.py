"""Router with a sender that records its answers, and a consumer that the test answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from bridge.message import Run, Stored
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

RULES = [
    AddressRule("q/#", AddressType.QUEUE),
    AddressRule("any/#", AddressType.ANYCAST),
    AddressRule("multi/#", AddressType.MULTICAST),
]


class Sender(interfaces.Origin):
    """Origin that records its answers in order."""

    def __init__(self, *, in_order: bool = True) -> None:
        self.name = "sender"
        self.in_order = in_order
        self.answers: list[tuple[int, Refusal | None]] = []

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers += [(token, None) for token in tokens]

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers += [(token, why) for token in tokens]

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.answers]


class AnswerableConsumer(RunConsumer):
    """Consumer that takes messages within its credit; the test answers them."""

    credit = 0

    def __init__(self, credit: int) -> None:
        self.name = "consumer"
        self.credit = credit
        self.got: list[tuple[Subscription, int, bytes]] = []

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.credit -= len(stored.run.bodies)
        self.got += [(subscription, stored.position + i, body) for i, body in enumerate(stored.run.bodies)]

    def settle(self, body: bytes, outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED) -> None:
        subscription, position, _ = next(each for each in self.got if each[2] == body)
        subscription.settle(self, position, position, outcome)


class ReplyRig:
    """A router over the in-memory store; commits end in `commit`."""

    def __init__(self, *, credit: int = 100, in_order: bool = True) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now_s = 0.0
        self.store = MemoryStore(post=self.posted.append)
        self.router = Router(
            self.store,
            AddressTable(RULES),
            clock_ns=lambda: 1,
            flush_soon=lambda: None,
            monotonic_s=lambda: self.now_s,
        )
        self.sender = Sender(in_order=in_order)
        self.consumer = AnswerableConsumer(credit)
        self.group = self.router.subscriptions.subscribe(self.consumer, "any/1", SubscribeOptions())

    def publish(self, address: str, *tokens: int) -> None:
        bodies = [str(token).encode() for token in tokens]
        self.router.publish(Publication(self.sender, Run(address, "sender", 1, b"", bodies), tokens))

    def commit(self) -> None:
        self.router.flush()
        while self.posted:
            self.posted.popleft()()

    def settled(self) -> None:
        """Check that no answer is pending and no state is left."""
        assert not self.router.answers.ordered.waiting
        assert not self.router.answers.awaiting_commit
