"""The router against a model: random publishers, consumers, commits, failures and absences.

What must hold at every moment: nothing is acknowledged before the commit of its message; answers come in the order of
the questions, anycast messages aside (and with them, for a sender that asks for it); no position is held by two
consumers of a group. And once everybody has credit and answers: every message that was acknowledged has reached every
durable subscription that was there, in the order of its producer, and exactly one consumer of a queue; nobody got a
message twice that it had settled. What was rejected, failed too often or expired is at the dead letter address (of the
queue) or in the loss ledger (of the durable subscription), once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge.message import Run, Stored
from edge.broker.delivery.dead_letters import DEAD_LETTERED
from edge.broker.limits import ANYCAST_ANSWER_S_MAX
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model import interfaces
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Outcome, Refusal, Subscription
from edge.broker.router.router import Router, SubscribeOptions
from edge.broker.store.contract import StoreFull
from tests.support.memory_store import MemoryStore

RULES = [
    AddressRule("q/#", AddressType.QUEUE),
    AddressRule("any/#", AddressType.ANYCAST),
    AddressRule("dead/#", AddressType.DEADLETTER),
    AddressRule("multi/#", AddressType.MULTICAST),
]
ATTEMPTS_MAX = 3
REDELIVERY = Redelivery(attempts_max=ATTEMPTS_MAX, delay_s=0.15, delay_multiplier=2)
POLICIES = {
    "q/#": AddressPolicy(redelivery=REDELIVERY, deadletter="dead/1", expiry="dead/1"),
    "#": AddressPolicy(redelivery=REDELIVERY),
}
EXPIRY = encode_run(Properties(message_expiry_interval_s=1))
OUTCOMES = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.ACCEPTED, *Outcome]
STORED = ["q/1", "t/1", "t/2"]
ADDRESSES = [*STORED, "any/1", "any/1", "multi/1", "unheard/1"]


class Sender(interfaces.Origin):
    """An origin that checks the order of its answers."""

    def __init__(self, name: str, *, in_order: bool) -> None:
        self.name = name
        self.in_order = in_order
        self.next_token = 0
        self.asked: deque[tuple[int, str]] = deque()
        self.accepted_bodies: list[tuple[str, bytes]] = []
        self.refused_bodies: set[bytes] = set()
        self.sent: dict[int, tuple[str, bytes]] = {}

    def accepted(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            address, body = self._answered(token)
            self.accepted_bodies.append((address, body))

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for token in tokens:
            self.refused_bodies.add(self._answered(token)[1])

    def _answered(self, token: int) -> tuple[str, bytes]:
        address, body = self.sent.pop(token)
        if self.in_order:
            assert self.asked[0][0] == token, "answers keep the order of what was sent"
        elif not address.startswith("any/"):  # end to end: those wait for their consumer
            stored = [waiting for waiting in self.asked if not waiting[1].startswith("any/")]
            assert stored[0][0] == token, "answers keep the order of what was sent"
        self.asked.remove((token, address))
        return address, body


class Receiver(interfaces.Consumer):
    """A consumer with a credit that tests give, holding what it has not settled."""

    credit = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.credit = 0
        self.held: dict[tuple[int, int], tuple[Subscription, str, bytes]] = {}
        self.got: list[tuple[str, bytes]] = []
        self.settled: list[tuple[str, bytes]] = []

    def deliver(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        assert 1 <= len(run.bodies) <= self.credit
        assert subscription.attempts < ATTEMPTS_MAX
        self.credit -= len(run.bodies)
        for i, body in enumerate(run.bodies):
            self.got.append((run.address, body))
            if stored.position >= 0:
                key = (id(subscription), stored.position + i)
                assert key not in self.held
                self.held[key] = (subscription, run.address, body)

    def abort(self) -> None:
        pytest.fail("delivering raised")


class RouterMachine(RuleBasedStateMachine):
    """One router over the store's twin in memory; callbacks run when the machine says so."""

    @initialize()
    def start(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 0.0
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        self.senders = [Sender("s0", in_order=False), Sender("s1", in_order=True)]
        self.counter = 0
        self.receivers: dict[str, Receiver] = {
            name: Receiver(name) for name in ("queue-a", "queue-b", "durable", "any", "dead")
        }
        self.joined: dict[str, object] = {}
        self.boot()
        self.join("durable")
        self.join("queue-a")

    def boot(self) -> None:
        self.router = Router(
            self.store, AddressTable(RULES), clock_ns=lambda: int(self.now * 1e9) + 1, policies=POLICIES
        )

    def address_of(self, name: str) -> str:
        return {"queue-a": "q/1", "queue-b": "q/1", "durable": "t/#", "any": "any/1", "dead": "dead/1"}[name]

    def join(self, name: str) -> None:
        options = SubscribeOptions(durable_name="sub" if name == "durable" else None)
        self.joined[name] = self.router.subscribe(self.receivers[name], self.address_of(name), options)
        self.joined[name].pump()  # type: ignore[attr-defined]

    @rule(
        which=st.integers(0, 1),
        address=st.sampled_from(ADDRESSES),
        count=st.integers(1, 4),
        qos=st.integers(1, 2),
        properties=st.sampled_from([b"", b"", EXPIRY]),
    )
    def publish(self, which: int, address: str, count: int, qos: int, properties: bytes) -> None:
        sender = self.senders[which]
        bodies, tokens = [], []
        for _ in range(count):
            self.counter += 1
            bodies.append(f"{sender.name}:{self.counter}".encode())
            tokens.append(sender.next_token)
            sender.sent[sender.next_token] = (address, bodies[-1])
            sender.asked.append((sender.next_token, address))
            sender.next_token += 1
        before = len(sender.accepted_bodies)
        self.router.publish(sender, Run(address, sender.name, qos, properties, bodies), tokens)
        if address in STORED:
            assert len(sender.accepted_bodies) == before, "not before the commit"

    @rule()
    def callbacks(self) -> None:
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    @rule()
    def foreign_flush(self) -> None:
        """Somebody else seals the group: nothing is answered but by its outcome."""
        self.store.flush()

    @rule()
    def tick(self) -> None:
        self.now += 0.1
        self.router.tick()

    @rule()
    def a_while(self) -> None:
        """So long that nobody waits for the consumer of an anycast message any more."""
        self.now += ANYCAST_ANSWER_S_MAX
        self.router.tick()

    @rule(failing=st.booleans())
    def medium(self, failing: bool) -> None:
        self.store.failure = StoreFull("no space left") if failing else None

    @rule(name=st.sampled_from(["queue-a", "queue-b", "durable", "any"]), credit=st.integers(1, 10))
    def give_credit(self, name: str, credit: int) -> None:
        if name in self.joined:
            self.receivers[name].credit += credit
            self.joined[name].pump()  # type: ignore[attr-defined]

    @rule(
        name=st.sampled_from(["queue-a", "queue-b", "durable", "any"]),
        count=st.integers(1, 5),
        outcome=st.sampled_from(OUTCOMES),
        newest=st.booleans(),
    )
    def settle(self, name: str, count: int, outcome: Outcome, newest: bool) -> None:
        receiver = self.receivers[name]
        keys = sorted(receiver.held, key=lambda key: key[1], reverse=newest)[:count]
        for key in keys:
            subscription, address, body = receiver.held.pop(key)
            if outcome is Outcome.ACCEPTED:
                assert (address, body) not in receiver.settled
                receiver.settled.append((address, body))
            subscription.settle(receiver, key[1], key[1], outcome)

    @rule(name=st.sampled_from(["queue-a", "queue-b", "any"]))
    @precondition(lambda self: len(self.joined) > 1)
    def leave(self, name: str) -> None:
        joined = self.joined.pop(name, None)
        if joined is not None:
            receiver = self.receivers[name]
            receiver.credit = 0
            receiver.held.clear()
            self.router.unsubscribe(receiver, joined, forget=False)  # type: ignore[arg-type]

    @rule(name=st.sampled_from(["queue-a", "queue-b", "any"]))
    def come_back(self, name: str) -> None:
        if name not in self.joined:
            self.join(name)

    @rule(keep=st.booleans())
    def durable_absence(self, keep: bool) -> None:
        """The durable subscriber goes and comes back at once, its in-flight messages kept or given back."""
        receiver = self.receivers["durable"]
        receiver.credit = 0
        self.joined["durable"].leave(receiver, keep=keep)  # type: ignore[attr-defined]
        if not keep:
            receiver.held.clear()
        self.join("durable")

    @invariant()
    def one_holder(self) -> None:
        a, b = self.receivers["queue-a"].held.keys(), self.receivers["queue-b"].held.keys()
        assert not a & b

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        self.store.failure = None
        for name in ("queue-a", "queue-b"):
            self.leave(name)  # whom a message was undeliverable to is somebody else when it comes again
        for name in ("queue-a", "any", "dead"):
            self.come_back(name)
        self.drain()
        everything = {key for sender in self.senders for key in sender.accepted_bodies}
        settled_queue = self.receivers["queue-a"].settled + self.receivers["queue-b"].settled
        assert len(settled_queue) == len(set(settled_queue)), "a queue's message is settled once"
        dead = [("q/1", body) for _, body in self.receivers["dead"].settled]
        assert len(dead) == len(set(dead)), "a dead letter is written once"
        assert not set(dead) & set(settled_queue)
        assert set(settled_queue) | set(dead) == {key for key in everything if key[0] == "q/1"}
        durable = self.receivers["durable"].settled
        assert len(durable) == len(set(durable))
        owed = {key for key in everything if key[0].startswith("t/")}
        assert set(durable) <= owed
        lost = [entry for entry in self.store.losses(0, 10_000) if not entry.reason.startswith(DEAD_LETTERED)]
        assert {entry.subscription for entry in lost} <= {"sub"}
        assert len(owed) - len(durable) == sum(entry.messages for entry in lost)
        buried = [entry for entry in self.store.losses(0, 10_000) if entry.reason.startswith(DEAD_LETTERED)]
        assert sum(entry.messages for entry in buried) == len(dead)
        assert all(not sender.sent for sender in self.senders), "everybody got an answer"
        assert not [key for sender in self.senders for key in sender.refused_bodies if ("q/1", key) in settled_queue]
        self.store.close()

    def drain(self) -> None:
        for _ in range(200):
            self.callbacks()
            self.tick()
            busy = bool(self.posted)
            for name in list(self.joined):
                receiver = self.receivers[name]
                if receiver.held:
                    busy = True
                    self.settle(name, len(receiver.held), Outcome.ACCEPTED, newest=False)
                before = len(receiver.got)
                receiver.credit = max(receiver.credit, 50)
                self.joined[name].pump()  # type: ignore[attr-defined]
                busy = busy or len(receiver.got) > before
            if not busy and not self.posted and not self.store.committing and all(not s.sent for s in self.senders):
                return


RouterMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestRouter = RouterMachine.TestCase
