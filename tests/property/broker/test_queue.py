"""Queue with consumers that join, leave, select, release and fail in any order.

No message is lost or held by two consumers at once, and no message of a group overtakes another.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.amqp_values import DescribedValue, Ubyte, Ulong, encode
from bridge.message import AMQP, GROUPED, Run, Stored
from edge.broker.delivery.pattern import Joinable
from edge.broker.limits import RETURNED_WAIT_S
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import SubscribeOptions
from tests.support.router_site import RouterSite, SilentOrigin
from tests.support.run_consumer import RunConsumer

LETTERS = "abc"
GROUPS = (None, None, "g", "h")


class Receiver(RunConsumer):
    """Holds messages until the test chooses their outcomes."""

    credit = 0

    def __init__(self, machine: QueueMachine, letters: str) -> None:
        self.name = "receiver"
        self.text = letters
        self.selection = self if letters else None
        self.credit = 0
        self.machine = machine
        self.held: list[tuple[Subscription, int, bytes]] = []
        self.joined: Joinable | None = None
        self.raises = False
        self.ended = False
        """Set when it raised: its connection ends."""

    def wanted(self, run: Run) -> Sequence[bool]:
        return [self.takes(body) for body in run.bodies]

    def takes(self, body: bytes) -> bool:
        return body[-2:-1].decode() in self.text

    def take(self, subscription: Subscription, stored: Stored) -> None:
        assert 1 <= len(stored.run.bodies) <= self.credit
        assert not self.ended
        if self.raises:
            self.ended = True
            raise RuntimeError
        self.credit -= len(stored.run.bodies)
        for i, body in enumerate(stored.run.bodies):
            assert not self.text or self.takes(body)
            self.machine.given_out(self, stored.position + i, body)
            self.held.append((subscription, stored.position + i, body))

    def abort(self) -> None:
        if not self.ended:
            pytest.fail("an assertion failed while it was given something")


class QueueMachine(RuleBasedStateMachine):
    """The real router over the store in memory; the test tracks the content of the queue from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.site = RouterSite()
        self.receivers: list[Receiver] = []
        self.waiting: dict[int, bytes] = {}
        self.holders: dict[int, Receiver] = {}
        self.sent = 0

    def given_out(self, receiver: Receiver, position: int, body: bytes) -> None:
        assert self.waiting.pop(position) == body
        assert position not in self.holders
        group = body[-1:]
        if group != b"-":
            others = [r for r in self.receivers if r is not receiver for _, _, held in r.held if held[-1:] == group]
            assert not others
        self.holders[position] = receiver

    @rule(
        kinds=st.lists(st.tuples(st.sampled_from(LETTERS + "x"), st.sampled_from(GROUPS)), min_size=1, max_size=6),
        priority=st.sampled_from([None, None, 0, 4, 9]),
    )
    def send(self, kinds: list[tuple[str, str | None]], priority: int | None) -> None:
        bodies, grouped = list[bytes](), False
        for letter, group in kinds:
            marks = f"{letter}{group or '-'}".encode()
            fields = b"" if group is None else encode(DescribedValue(Ulong(0x73), [None] * 10 + [group]))
            grouped = grouped or group is not None
            bodies.append(fields + encode(DescribedValue(Ulong(0x75), marks)))
            self.waiting[self.sent] = bodies[-1]
            self.sent += 1
        header = b"" if priority is None else encode(DescribedValue(Ulong(0x70), [True, Ubyte(priority)]))
        flags = AMQP | 1 | (GROUPED if grouped else 0)
        self.site.router.publish(Publication(SilentOrigin(), Run("queue/a", "d", flags, header, bodies), ()))
        self.site.settle_down()

    @rule(letters=st.sampled_from(["", "", "a", "b", "ab"]), credit=st.integers(0, 8))
    def come(self, letters: str, credit: int) -> None:
        if len(self.receivers) < 4:
            receiver = Receiver(self, letters)
            receiver.credit = credit
            self.receivers.append(receiver)
            receiver.joined = self.site.router.subscriptions.subscribe(receiver, "queue/a", SubscribeOptions())
            receiver.joined.pump()
            self.site.settle_down()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.goes(data.draw(st.sampled_from(self.receivers)))

    @precondition(lambda self: self.receivers)
    @rule(data=st.data())
    def raises(self, data: st.DataObject) -> None:
        """Make a receiver raise at its next delivery."""
        data.draw(st.sampled_from(self.receivers)).raises = True

    @rule()
    def begins_anew(self) -> None:
        """Report an exception of the queue itself, which then restarts."""
        queue = self.site.router.queues.get("queue/a")
        if queue is not None:
            self.site.router.feeds.handle_error(queue, RuntimeError())
            self.site.settle_down()

    def goes(self, receiver: Receiver) -> None:
        self.receivers.remove(receiver)
        for _, position, body in receiver.held:
            del self.holders[position]
            self.waiting[position] = body
        receiver.held.clear()
        receiver.credit = 0
        assert receiver.joined is not None
        self.site.router.subscriptions.unsubscribe(receiver, receiver.joined, forget=False)
        self.site.settle_down()

    @precondition(lambda self: self.receivers)
    @rule(data=st.data(), credit=st.integers(1, 8))
    def grant(self, data: st.DataObject, credit: int) -> None:
        receiver = data.draw(st.sampled_from(self.receivers))
        receiver.credit += credit
        assert receiver.joined is not None
        receiver.joined.pump()
        self.site.settle_down()

    @precondition(lambda self: any(receiver.held for receiver in self.receivers))
    @rule(
        data=st.data(),
        outcome=st.sampled_from([DeliveryOutcome.ACCEPTED, DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED]),
    )
    def answer(self, data: st.DataObject, outcome: DeliveryOutcome) -> None:
        receiver = data.draw(st.sampled_from([receiver for receiver in self.receivers if receiver.held]))
        i = data.draw(st.integers(0, len(receiver.held) - 1))
        subscription, position, body = receiver.held.pop(i)
        del self.holders[position]
        if outcome is not DeliveryOutcome.ACCEPTED:
            self.waiting[position] = body
        subscription.settle(receiver, position, position, outcome)
        # For some seconds a returned message waits for others, even for those without credit.
        self.site.settle_down(wait_s=0.0 if outcome is DeliveryOutcome.ACCEPTED else RETURNED_WAIT_S)

    @rule()
    def restart(self) -> None:
        for receiver in self.receivers:
            for _, position, body in receiver.held:
                self.waiting[position] = body
        self.receivers.clear()
        self.holders.clear()
        self.site.settle_down(wait_s=1.0)  # so that the moves of the cursor are written
        self.site.boot()

    @invariant()
    def connections_of_those_that_raised_end(self) -> None:
        for receiver in [receiver for receiver in self.receivers if receiver.ended]:
            self.goes(receiver)

    @invariant()
    def nobody_with_credit_waits_for_what_waits_for_him(self) -> None:
        alone = len(self.receivers) == 1
        for receiver in self.receivers:
            if receiver.credit > 0:
                waiting = [body for body in self.waiting.values() if alone or body.endswith(b"-")]
                assert not [body for body in waiting if receiver.selection is None or receiver.takes(body)]

    def teardown(self) -> None:
        """Join a receiver that accepts everything: it gets each remaining message once."""
        for receiver in self.receivers:
            receiver.credit, receiver.raises = 0, False
        everything = Receiver(self, "")
        everything.credit = 10_000
        for receiver in list(self.receivers):
            for _, position, body in receiver.held:
                del self.holders[position]
                self.waiting[position] = body
            receiver.held.clear()
            self.receivers.remove(receiver)
            assert receiver.joined is not None
            self.site.router.subscriptions.unsubscribe(receiver, receiver.joined, forget=False)
        self.receivers.append(everything)
        everything.joined = self.site.router.subscriptions.subscribe(everything, "queue/a", SubscribeOptions())
        everything.joined.pump()
        for _ in range(5):
            self.site.settle_down()
        assert not self.waiting


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
