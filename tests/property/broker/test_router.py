"""Router against a model: random publishers, consumers, commits, failures, absences, changes of rules, exceptions.

These rules hold at every moment:

- No message is acknowledged before its commit.
- Answers come in the order of the messages. Anycast messages are an exception, unless their sender requires order.
- No position is held by two consumers of a group.
- A cursor has passed only messages that were settled, dropped, or filtered out by its subscription.

Once all consumers have credit and answer, each acknowledged message has reached every durable subscription of the time,
in the order of its producer, and exactly one consumer of a queue. No consumer got a message twice that it had settled.
Messages that were rejected, failed too often or expired are at the dead letter address (of the queue) or in the loss
ledger (of the durable subscription), once.

All of this holds when rules change during a commit, when any consumer or subscription raises, and when the feeds miss
the notification of a commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge.message import Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.dead_letters import DEAD_LETTERED
from edge.broker.limits import ANYCAST_ANSWER_S_MAX
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model import interfaces
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from edge.broker.store.errors import StoreFull
from edge.broker.store.records import Committed, Loss
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

RULES = [
    AddressRule("q/#", AddressType.QUEUE),
    AddressRule("any/#", AddressType.ANYCAST),
    AddressRule("dead/#", AddressType.DEADLETTER),
    AddressRule("multi/#", AddressType.MULTICAST),
]
TABLES = [
    RULES,
    [*RULES, AddressRule("t/1", AddressType.TOPIC)],
    [*RULES, AddressRule("t/#", AddressType.TOPIC), AddressRule("t/2", AddressType.TOPIC)],
    [*RULES, AddressRule("t/1", AddressType.QUEUE)],
    [*RULES, AddressRule("t/#", AddressType.MULTICAST)],
]
ATTEMPTS_MAX = 3
REDELIVERY = Redelivery(attempts_max=ATTEMPTS_MAX, delay_s=0.15, delay_multiplier=2)
POLICIES = {
    "q/#": AddressPolicy(redelivery=REDELIVERY, deadletter="dead/1", expiry="dead/1"),
    "#": AddressPolicy(redelivery=REDELIVERY),
}
EXPIRY = encode_run(Properties(message_expiry_interval_s=1))
OUTCOMES = [DeliveryOutcome.ACCEPTED, DeliveryOutcome.ACCEPTED, DeliveryOutcome.ACCEPTED, *DeliveryOutcome]
TOPICS = ["t/1", "t/2"]
STORED = ["q/1", *TOPICS]
ADDRESSES = [*STORED, "any/1", "any/1", "multi/1", "unheard/1"]


class Sender(interfaces.Origin):
    """Origin that checks the order of its answers."""

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


class Receiver(RunConsumer):
    """Consumer with credit from the test, which holds unsettled messages."""

    credit = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.credit = 0
        self.held: dict[tuple[int, int], tuple[Subscription, str, bytes]] = {}
        self.got: list[tuple[str, bytes]] = []
        self.settled: list[tuple[str, bytes]] = []
        self.raises = False
        self.ended = False
        """Set when it raised and its connection has not been closed yet."""

    def take(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        assert not self.ended
        if self.raises:
            self.raises, self.ended = False, True
            raise RuntimeError
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
        if not self.ended:
            pytest.fail("an assertion failed while it was given something")


class RouterMachine(RuleBasedStateMachine):
    """Router over a store in memory; the machine decides when callbacks run."""

    @initialize()
    def start(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 0.0
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        self.senders = [Sender("s0", in_order=False), Sender("s1", in_order=True)]
        self.counter = 0
        self.missing = False
        """The feeds miss the notification of the next commit."""
        self.logged: dict[tuple[int, int], tuple[str, bytes]] = {}
        """Message at each position of a log."""
        self.done_with: set[tuple[int, int]] = set()
        """(cursor, position) of messages that were settled or dropped."""
        self.store.commits.listeners.append(self.committed)
        self.watch_giving_up()
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
        told = self.router.feeds.committed

        def tell(appended: Sequence[tuple[int, Stored]]) -> None:
            if self.missing and appended:
                self.missing = False
            else:
                told(appended)

        self.router.feeds.committed = tell  # type: ignore[method-assign]

    def committed(self, commit: Committed) -> None:
        for log, stored in commit.appended:
            for i, body in enumerate(stored.run.bodies):
                self.logged[log, stored.position + i] = (stored.run.address, body)

    def watch_giving_up(self) -> None:
        discard = self.store.cursors.discard

        def watched(cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> None:
            self.done_with.update((cursor, position) for position in range(first, last + 1))
            discard(cursor, first, last, losses, if_kept=if_kept)

        self.store.cursors.discard = watched  # type: ignore[method-assign]

    def address_of(self, name: str) -> str:
        return {"queue-a": "q/1", "queue-b": "q/1", "durable": "t/#", "any": "any/1", "dead": "dead/1"}[name]

    def join(self, name: str) -> None:
        receiver, address = self.receivers[name], self.address_of(name)
        options = SubscribeOptions(durable_name="sub" if name == "durable" else None)
        remainder = None
        if name == "durable" and self.router.addresses.type_of(address) is not AddressType.TOPIC:
            remainder = self.router.durable_subscriptions.join_remainder(
                receiver, "sub"
            )  # as a session does after its address has changed
        self.joined[name] = remainder or self.router.subscriptions.subscribe(receiver, address, options)
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
            kind = self.router.addresses.type_of(address)
            kept = address not in TOPICS or kind is AddressType.TOPIC  # else no durable subscription has to receive it
            label = address if kept else f"other {address}"
            sender.sent[sender.next_token] = (label, bodies[-1])
            sender.asked.append((sender.next_token, label))
            sender.next_token += 1
        before = len(sender.accepted_bodies)
        self.router.publish(Publication(sender, Run(address, sender.name, qos, properties, bodies), tokens))
        if self.router.addresses.type_of(address) in (AddressType.QUEUE, AddressType.TOPIC) and address in STORED:
            assert len(sender.accepted_bodies) == before, "not before the commit"

    @rule()
    def callbacks(self) -> None:
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    @rule()
    def foreign_flush(self) -> None:
        """Seal the group outside of the router: messages are answered only with their outcome."""
        self.store.commits.flush()

    @rule()
    def tick(self) -> None:
        self.now += 0.1
        self.router.tick()

    @rule()
    def a_while(self) -> None:
        """Let so much time pass that no sender waits for an anycast consumer any longer."""
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

    @rule(name=st.sampled_from(["queue-a", "durable"]), address=st.sampled_from(["q/1", "t/1"]))
    def deliver(self, name: str, address: str) -> None:
        """Publish, commit and deliver, as in the usual case; random steps rarely do this."""
        self.publish(0, address, 2, 1, b"")
        self.tick()
        self.callbacks()
        self.give_credit(name, 2)
        self.callbacks()

    @rule(
        name=st.sampled_from(["queue-a", "queue-b", "durable", "any"]),
        count=st.integers(1, 5),
        outcome=st.sampled_from(OUTCOMES),
        newest=st.booleans(),
    )
    def settle(self, name: str, count: int, outcome: DeliveryOutcome, newest: bool) -> None:
        receiver = self.receivers[name]
        keys = sorted(receiver.held, key=lambda key: key[1], reverse=newest)[:count]
        for key in keys:
            subscription, address, body = receiver.held.pop(key)
            if outcome is DeliveryOutcome.ACCEPTED:
                assert (address, body) not in receiver.settled
                receiver.settled.append((address, body))
                if isinstance(subscription, LogSubscription):
                    self.done_with.add((subscription.cursor, key[1]))
            subscription.settle(receiver, key[1], key[1], outcome)

    @rule(rules=st.sampled_from(TABLES))
    def reconfigure(self, rules: list[AddressRule]) -> None:
        self.router.reconfigure(AddressTable(rules), POLICIES)

    @rule(name=st.sampled_from(["queue-a", "queue-b", "durable", "any"]))
    def a_consumer_raises(self, name: str) -> None:
        self.receivers[name].raises = True

    @rule(keep=st.booleans())
    def connections_end(self, keep: bool) -> None:
        """End the connections of consumers that raised; each returns at once."""
        for name, receiver in self.receivers.items():
            if receiver.ended:
                receiver.ended = False
                if name == "durable":
                    self.durable_absence(keep)
                else:
                    self.leave(name)
                    self.come_back(name)

    @rule(which=st.integers(0, 3), goes_on=st.booleans())
    def a_subscription_raises(self, which: int, goes_on: bool) -> None:
        durable = self.router.durable_subscriptions["sub"].parts
        every = [*durable, *self.router.queues.values()]
        self.router.feeds.handle_error(every[which % len(every)], RuntimeError())
        if goes_on:
            self.tick()
            self.callbacks()
            for name in ("durable", "queue-a"):
                self.give_credit(name, 3)
            self.callbacks()
            self.callbacks()

    @rule()
    def the_next_wake_is_missed(self) -> None:
        self.missing = True

    @rule(name=st.sampled_from(["queue-a", "queue-b", "any"]))
    @precondition(lambda self: len(self.joined) > 1)
    def leave(self, name: str) -> None:
        joined = self.joined.pop(name, None)
        if joined is not None:
            receiver = self.receivers[name]
            receiver.credit = 0
            receiver.held.clear()
            self.router.subscriptions.unsubscribe(receiver, joined, forget=False)  # type: ignore[arg-type]

    @rule(name=st.sampled_from(["queue-a", "queue-b", "any"]))
    def come_back(self, name: str) -> None:
        if name not in self.joined:
            self.join(name)

    @rule(keep=st.booleans())
    def durable_absence(self, keep: bool) -> None:
        """Let the durable subscriber leave and return at once; it keeps or releases in-flight messages."""
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

    @invariant()
    def cursors_pass_nothing_nobody_saw(self) -> None:
        for subscription in self.router.durable_subscriptions["sub"].parts:
            self.check_cursor(subscription)
        for subscription in self.router.queues.values():
            self.check_cursor(subscription)

    def check_cursor(self, subscription: LogSubscription) -> None:
        record = self.store.cursors.record(subscription.cursor)
        done = Ranges()
        done.add(-1, record.position - 1)
        for first, last in record.acknowledged:
            done.add(first, last)
        for (log, position), (address, _) in self.logged.items():
            if log == record.log and position in done and matches(subscription.pattern, address):
                assert (record.cursor, position) in self.done_with, (subscription.name, position)

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        self.missing = False
        for receiver in self.receivers.values():
            receiver.raises = False
        self.connections_end(keep=False)
        self.router.reconfigure(AddressTable(RULES), POLICIES)
        self.store.failure = None
        for name in ("queue-a", "queue-b"):
            self.leave(name)  # a consumer that refused a message returns as another one
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
        lost = [entry for entry in self.store.ledger.entries(0, 10_000) if not entry.reason.startswith(DEAD_LETTERED)]
        lost = [entry for entry in lost if (entry.subscription, entry.address) != ("queue", "t/1")]  # as a queue
        assert {entry.subscription for entry in lost} <= {"sub"}
        assert len(owed) - len(durable) == sum(entry.messages for entry in lost)
        buried = [entry for entry in self.store.ledger.entries(0, 10_000) if entry.reason.startswith(DEAD_LETTERED)]
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
                    self.settle(name, len(receiver.held), DeliveryOutcome.ACCEPTED, newest=False)
                before = len(receiver.got)
                receiver.credit = max(receiver.credit, 50)
                self.joined[name].pump()  # type: ignore[attr-defined]
                busy = busy or len(receiver.got) > before
            if (
                not busy
                and not self.posted
                and not self.store.commits.committing
                and all(not s.sent for s in self.senders)
            ):
                return


RouterMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestRouter = RouterMachine.TestCase
