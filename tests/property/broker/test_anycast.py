"""Anycast address with consumers that join, leave, refuse and fail in any order.

Messages are handed out one by one, a turn at a time, or encoded. None is lost or held by two consumers at once, and
each is answered once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.message import AMQP, Run, Stored
from edge.broker.delivery.batches import EncodedBatch
from edge.broker.limits import ANYCAST_QUICK_S, TRANSIENT_BUFFER_BYTES_MIN
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import AnycastBatch, Publication
from tests.support.router_site import RouterSite
from tests.support.run_consumer import RunConsumer

ADDRESS = "anycast/a"
OUTCOMES = (
    DeliveryOutcome.ACCEPTED,
    DeliveryOutcome.REJECTED,
    DeliveryOutcome.RELEASED,
    DeliveryOutcome.MODIFIED_FAILED,
)
LARGE = 8
"""Size in bytes of a message that some receivers refuse."""


class Sender(interfaces.Origin):
    """Records its answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: dict[int, Refusal | None] = {}

    def accepted(self, tokens: Sequence[int]) -> None:
        self._answered(tokens, None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._answered(tokens, why)

    def _answered(self, tokens: Sequence[int], why: Refusal | None) -> None:
        for token in tokens:
            assert token not in self.answers
            self.answers[token] = why

    def abort(self) -> None:
        pytest.fail("an answer raised")


class Many(AnycastBatch):
    """One message of each of these senders."""

    address = ADDRESS
    taken = 0

    def __init__(self, senders: Sequence[tuple[Sender, int]], bodies: Sequence[bytes]) -> None:
        self.name = "many"
        self.senders = senders
        self.encoded = list(bodies)

    def members(self, start: int) -> list[Publication]:
        self.taken = start
        return [
            Publication(sender, self.run(place), [token])
            for place, (sender, token) in enumerate(self.senders)
            if place >= start
        ]

    def run(self, place: int) -> Run:
        return Run(ADDRESS, self.senders[place][0].name, AMQP | 1, b"", [self.encoded[place]])

    def accepted(self, tokens: Sequence[int]) -> None:
        for place in tokens:
            sender, token = self.senders[place]
            sender.accepted([token])

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for place in tokens:
            sender, token = self.senders[place]
            sender.refused([token], why)

    def abort(self) -> None:
        pytest.fail("an answer raised")


class Receiver(RunConsumer):
    """Holds messages until the test chooses their outcomes."""

    credit = 0

    def __init__(self, name: str, credit: int = 0, size_max: int = 1000, *, encoded: bool = False) -> None:
        self.name = name
        self.credit = credit
        self.size_max = size_max
        self.encoded = encoded
        """Accept encoded messages when all of them fit."""
        self.raises = self.ended = False
        self.got: list[bytes] = []
        self.gave_back: set[bytes] = set()
        self.held: dict[int, bytes] = {}
        self.subscription: Subscription | None = None

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        if self.encoded and isinstance(batch, EncodedBatch) and max(map(len, batch.messages)) <= self.size_max:
            run = Run(ADDRESS, "", AMQP | 1, b"", list(batch.messages))
            batch = [Stored(batch.position, 0, run)]
        super().deliver(subscription, batch)

    def take(self, subscription: Subscription, stored: Stored) -> None:
        assert 1 <= len(stored.run.bodies) <= self.credit
        assert not self.ended
        if self.raises:
            self.ended = True
            raise RuntimeError
        self.subscription = subscription
        for position, body in enumerate(stored.run.bodies, stored.position):
            if len(body) > self.size_max:
                self.gave_back.add(body)
                subscription.settle(self, position, position, DeliveryOutcome.TOO_LARGE)
            else:
                self.credit -= 1
                self.got.append(body)
                assert position not in self.held
                self.held[position] = body

    def answer(self, position: int, outcome: DeliveryOutcome) -> None:
        body = self.held.pop(position)
        if outcome in (DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED):
            self.gave_back.add(body)
        assert self.subscription is not None
        self.subscription.settle(self, position, position, outcome)

    def abort(self) -> None:
        if not self.ended:
            pytest.fail("an assertion failed while it was given something")


class Address:
    """Anycast address of a router, and the messages sent to it."""

    def __init__(self) -> None:
        self.site = RouterSite()
        self.senders = [Sender(name) for name in "abc"]
        self.receivers: list[Receiver] = []
        self.sent = 0
        self.who: dict[bytes, tuple[Sender, int]] = {}

    def turn(self, *, together: bool) -> AbstractContextManager[None]:
        return self.site.router.subscriptions.competing.gathered(ADDRESS) if together else nullcontext()

    def send(self, number: int, sizes: Sequence[int]) -> None:
        sender, tokens, bodies = self.senders[number], list[int](), list[bytes]()
        for size in sizes:
            body = self.sent.to_bytes(4, "big") + bytes(size)
            self.who[body] = sender, self.sent
            tokens.append(self.sent)
            bodies.append(body)
            self.sent += 1
        self.site.router.publish(Publication(sender, Run(ADDRESS, sender.name, 1, b"", bodies), tokens))

    def hand_on(self, numbers: Sequence[int], size: int = 0) -> int:
        """Publish one message of each sender as a batch; return the number of messages that were taken as a batch."""
        bodies = [(self.sent + i).to_bytes(4, "big") + bytes(size) for i in range(len(numbers))]
        senders = [(self.senders[number], self.sent + i) for i, number in enumerate(numbers)]
        self.who.update(zip(bodies, senders, strict=True))
        self.sent += len(numbers)
        batch = Many(senders, bodies)
        self.site.router.publish(batch)
        return batch.taken

    def come(self, receiver: Receiver) -> None:
        self.receivers.append(receiver)
        joined = self.site.router.subscriptions.subscribe(receiver, ADDRESS, SubscribeOptions())
        receiver.subscription = joined
        joined.pump()

    def go(self, receiver: Receiver) -> None:
        self.receivers.remove(receiver)
        receiver.held.clear()
        group = self.site.router.subscriptions.competing.anycast_group(ADDRESS)
        self.site.router.subscriptions.unsubscribe(receiver, group, forget=False)

    @property
    def unanswered(self) -> set[bytes]:
        return {body for body, (sender, token) in self.who.items() if token not in sender.answers}


class AnycastMachine(RuleBasedStateMachine):
    """The real router; the test tracks sent messages from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.address = Address()

    @rule(
        runs=st.lists(
            st.tuples(st.integers(0, 2), st.lists(st.sampled_from([0, 0, LARGE]), min_size=1, max_size=3)),
            min_size=1,
            max_size=6,
        ),
        together=st.booleans(),
        goes=st.none() | st.integers(0, 5),
    )
    def send(self, runs: list[tuple[int, list[int]]], together: bool, goes: int | None) -> None:
        """Send runs. With `goes`, a receiver leaves after this many runs."""
        there = bool(self.address.receivers)
        with self.address.turn(together=together):
            for i, (number, sizes) in enumerate(runs):
                self.address.send(number, sizes)
                if i == goes and self.address.receivers:
                    self.address.go(self.address.receivers[0])
        if not there:
            assert not self.address.unanswered

    @rule(numbers=st.lists(st.integers(0, 2), min_size=1, max_size=8), size=st.sampled_from([0, 0, LARGE]))
    def hand_on(self, numbers: list[int], size: int) -> None:
        """Publish one message of each of many senders, as received in one turn."""
        there = bool(self.address.receivers)
        self.address.hand_on(numbers, size)
        if not there:
            assert not self.address.unanswered

    @rule(credit=st.integers(0, 8), size_max=st.sampled_from([1000, 1000, LARGE]), encoded=st.booleans())
    def come(self, credit: int, size_max: int, encoded: bool) -> None:
        if len(self.address.receivers) < 4:
            self.address.come(Receiver(f"r{credit}", credit, size_max, encoded=encoded))

    @precondition(lambda self: self.address.receivers)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.address.go(data.draw(st.sampled_from(self.address.receivers)))

    @precondition(lambda self: self.address.receivers)
    @rule(data=st.data())
    def raises(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.address.receivers)).raises = True

    @precondition(lambda self: self.address.receivers)
    @rule(data=st.data(), credit=st.integers(1, 8))
    def grant(self, data: st.DataObject, credit: int) -> None:
        receiver = data.draw(st.sampled_from(self.address.receivers))
        receiver.credit += credit
        assert receiver.subscription is not None
        receiver.subscription.pump()

    @precondition(lambda self: any(receiver.held for receiver in self.address.receivers))
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def answer(self, data: st.DataObject, outcome: DeliveryOutcome) -> None:
        receiver = data.draw(st.sampled_from([each for each in self.address.receivers if each.held]))
        position = data.draw(st.sampled_from(sorted(receiver.held)))
        sender, token = self.address.who[receiver.held[position]]
        receiver.answer(position, outcome)
        if outcome is DeliveryOutcome.ACCEPTED:
            assert sender.answers[token] is None
        elif outcome is DeliveryOutcome.REJECTED:
            assert sender.answers[token] is Refusal.REJECTED
        elif self.address.receivers == [receiver]:
            assert sender.answers[token] in (Refusal.RELEASED, Refusal.DELIVERY_FAILED)

    @invariant()
    def connections_of_those_that_raised_end(self) -> None:
        for receiver in [each for each in self.address.receivers if each.ended]:
            self.address.go(receiver)

    @invariant()
    def nothing_is_with_two_or_lost(self) -> None:
        held = [body for receiver in self.address.receivers for body in receiver.held.values()]
        assert len(held) == len(set(held))
        unanswered = self.address.unanswered
        assert set(held) <= unanswered
        if not self.address.receivers:
            assert not unanswered
        waiting = unanswered - set(held)
        for receiver in self.address.receivers:
            may_have = [body for body in waiting if body not in receiver.gave_back and len(body) <= receiver.size_max]
            assert not (receiver.credit and may_have)
        for body in waiting:
            assert any(body not in receiver.gave_back for receiver in self.address.receivers)

    @invariant()
    def nobody_gets_again_what_it_gave_back(self) -> None:
        for receiver in self.address.receivers:
            assert len(receiver.got) == len(set(receiver.got))

    def teardown(self) -> None:
        """Join a receiver that accepts everything: it gets each remaining message once."""
        for receiver in self.address.receivers:
            receiver.raises, receiver.credit = False, 0
        everything = Receiver("everything", 10_000)
        self.address.come(everything)
        for receiver in self.address.receivers[:-1]:
            self.address.go(receiver)
        for position in sorted(everything.held):
            everything.answer(position, DeliveryOutcome.ACCEPTED)
        assert not self.address.unanswered


TestAnycast = AnycastMachine.TestCase
TestAnycast.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

STEPS = st.one_of(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.sampled_from([0, LARGE]), min_size=1, max_size=3)), max_size=6),
    st.integers(1, 8),
    st.sampled_from(OUTCOMES),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=12), st.sampled_from([1000, LARGE]))
def test_single_consumer_gets_and_answers_the_same_on_both_paths(steps: list[object], size_max: int) -> None:
    def played(*, together: bool) -> tuple[list[bytes], list[list[tuple[int, Refusal | None]]]]:
        address, receiver = Address(), Receiver("r", 0, size_max)
        address.come(receiver)
        for step in steps:
            match step:
                case list():
                    with address.turn(together=together):
                        for number, sizes in step:
                            address.send(number, sizes)
                case int():
                    receiver.credit += step
                    assert receiver.subscription is not None
                    receiver.subscription.pump()
                case DeliveryOutcome():
                    for position in list(receiver.held):
                        receiver.answer(position, step)
        return receiver.got, [list(sender.answers.items()) for sender in address.senders]

    assert played(together=True) == played(together=False)


class TestOneTurn:
    def test_messages_are_shared_evenly_and_in_order(self) -> None:
        address = Address()
        for name in "xyz":
            address.come(Receiver(name, 100))
        with address.turn(together=True):
            for number in range(9):
                address.send(number % 3, [0])
            assert not any(receiver.got for receiver in address.receivers)
        order = list(address.who)
        assert [receiver.got for receiver in address.receivers] == [order[:3], order[3:6], order[6:]]

    def test_messages_a_consumer_cannot_take_go_to_another_in_order(self) -> None:
        address = Address()
        address.come(Receiver("small", 100, LARGE))
        address.come(Receiver("all", 0))
        with address.turn(together=True):
            for size in (LARGE, 0, LARGE, LARGE, 0):
                address.send(0, [size])
        small, everything = address.receivers
        everything.credit = 100
        assert everything.subscription is not None
        everything.subscription.pump()
        order = list(address.who)
        assert everything.got == [body for body in order if len(body) > LARGE]
        assert small.got == [body for body in order if len(body) <= LARGE]

    def test_released_range_goes_to_another_in_order(self) -> None:
        address = Address()
        address.come(Receiver("first", 3))
        address.send(0, [0, 0, 0])
        first = address.receivers[0]
        address.come(Receiver("second", 100))
        assert first.subscription is not None
        first.subscription.settle(first, 0, 2, DeliveryOutcome.RELEASED)
        assert address.receivers[1].got == list(address.who)

    def test_released_message_is_answered_when_its_awaited_consumer_raises(self) -> None:
        address = Address()
        address.come(Receiver("first", 2))
        address.come(Receiver("second", 0))
        address.send(0, [0, 0])
        first, second = address.receivers
        assert first.subscription is not None
        first.subscription.settle(first, 0, 1, DeliveryOutcome.RELEASED)
        assert not address.senders[0].answers
        address.go(first)
        second.raises, second.credit = True, 2
        assert second.subscription is not None
        second.subscription.pump()
        assert address.senders[0].answers == {0: Refusal.NO_CONSUMER, 1: Refusal.NO_CONSUMER}

    def test_consumer_without_credit_gets_nothing(self) -> None:
        address = Address()
        address.come(Receiver("deaf", 0))
        address.come(Receiver("well", 100))
        with address.turn(together=True):
            for _ in range(5):
                address.send(0, [0])
        assert [len(receiver.got) for receiver in address.receivers] == [0, 5]

    def test_messages_beyond_the_buffer_are_delivered_before_the_end_of_the_turn(self) -> None:
        address = Address()
        address.come(Receiver("r", 100, TRANSIENT_BUFFER_BYTES_MIN))
        with address.turn(together=True):
            for _ in range(5):
                address.send(0, [TRANSIENT_BUFFER_BYTES_MIN // 2])
            assert len(address.receivers[0].got) >= 3
        assert len(address.receivers[0].got) == 5
        assert not address.senders[0].answers

    def test_reconfigured_address_delivers_earlier_messages(self) -> None:
        address = Address()
        receiver = Receiver("r", 100)
        address.come(receiver)
        with address.turn(together=True):
            address.send(0, [0])
            address.site.router.reconfigure(AddressTable([AddressRule("anycast/#", AddressType.QUEUE)]))
            address.send(0, [0])
        assert receiver.got == list(address.who)[:1]
        receiver.answer(next(iter(receiver.held)), DeliveryOutcome.ACCEPTED)
        assert address.senders[0].answers == {0: None}
        address.site.settle_down()
        assert address.senders[0].answers == {0: None, 1: None}  # in the queue

    def test_exception_does_not_affect_the_consumers(self) -> None:
        address = Address()
        address.come(Receiver("r", 100))

        def turn() -> None:
            with address.turn(together=True):
                address.send(0, [0])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            turn()
        assert len(address.receivers[0].got) == 1


class TestLaneDelivery:
    """Batch with one message of each of many senders."""

    @pytest.fixture
    def address(self) -> Address:
        """Return an address with a known route and two consumers that each take a part."""
        address = Address()
        for name in "xy":
            address.come(Receiver(name, 100, encoded=True))
        address.send(0, [0])
        address.receivers[0].answer(0, DeliveryOutcome.ACCEPTED)
        address.receivers[0].got.clear()
        return address

    def test_messages_are_shared_evenly_and_in_order(self, address: Address) -> None:
        assert address.hand_on([0, 1, 2, 0, 1]) == 5
        order = list(address.who)[1:]
        assert sorted(receiver.got for receiver in address.receivers) == [order[:3], order[3:]]

    def test_each_message_is_answered_by_its_consumer(self, address: Address) -> None:
        address.hand_on([0, 1, 2, 2])
        first, second = address.receivers
        for receiver, outcome in ((first, DeliveryOutcome.ACCEPTED), (second, DeliveryOutcome.REJECTED)):
            held = list(receiver.held.items())
            receiver.held.clear()
            assert receiver.subscription is not None
            receiver.subscription.settle(receiver, held[0][0], held[-1][0], outcome)
            why = None if outcome is DeliveryOutcome.ACCEPTED else Refusal.REJECTED
            for sender, token in [address.who[body] for _, body in held]:
                assert sender.answers[token] is why
        assert not address.unanswered
        figures = address.site.router.figures
        assert (figures.received, figures.acknowledged, figures.refused) == (5, 3, 2)

    def test_deliveries_are_limited_by_the_credit(self, address: Address) -> None:
        for receiver, credit in zip(address.receivers, (1, 2), strict=True):
            receiver.credit = credit
        assert address.hand_on([0, 1, 2, 0, 1]) == 3
        assert address.hand_on([0]) == 0  # it does not overtake waiting messages
        receiver = address.receivers[0]
        receiver.credit = 9
        assert receiver.subscription is not None
        receiver.subscription.pump()
        assert receiver.got[-3:] == list(address.who)[4:]

    def test_messages_of_a_departed_consumer_go_to_the_other_unchanged(self, address: Address) -> None:
        address.hand_on([0, 1, 2, 0])
        first, second = address.receivers
        left = list(first.held.values())
        address.go(first)
        assert second.got[-len(left) :] == left
        assert set(second.held.values()) == address.unanswered

    def test_consumer_that_raises_does_not_affect_the_other(self, address: Address) -> None:
        address.receivers[0].raises = True
        address.hand_on([0, 1, 2, 0])
        other = address.receivers[1]
        assert set(other.held.values()) == address.unanswered
        assert len(other.got) == 4

    def test_senders_are_answered_when_all_consumers_have_left(self, address: Address) -> None:
        address.hand_on([0, 1])
        for receiver in list(address.receivers):
            address.go(receiver)
        assert [address.senders[number].answers[number + 1] for number in (0, 1)] == [Refusal.NO_CONSUMER] * 2
        assert address.hand_on([2]) == 0
        assert address.senders[2].answers == {3: Refusal.NO_CONSUMER}

    def test_consumer_with_a_selector_gets_runs(self, address: Address) -> None:
        for receiver in address.receivers:
            receiver.encoded = False
        assert address.hand_on([0, 1]) == 2
        assert sorted(body for receiver in address.receivers for body in receiver.got) == list(address.who)[1:]


class TestFewMessages:
    """Small batches of a turn go to all consumers, or to one that answers at once."""

    @pytest.fixture
    def address(self) -> Address:
        address = Address()
        for name in "xyz":
            address.come(Receiver(name, 1000, encoded=True))
        address.send(0, [0])
        address.receivers[0].answer(0, DeliveryOutcome.ACCEPTED)
        return address

    @staticmethod
    def turn(address: Address, count: int, answered_after_s: float) -> int:
        """Send and answer all messages; return the number of consumers that received some."""
        address.hand_on([i % 3 for i in range(count)])
        address.site.now += answered_after_s
        busy = [receiver for receiver in address.receivers if receiver.held]
        for receiver in busy:
            for position in list(receiver.held):
                receiver.answer(position, DeliveryOutcome.ACCEPTED)
        return len(busy)

    def test_one_of_several_fast_consumers_gets_all(self, address: Address) -> None:
        counts = [self.turn(address, 6, 0.001) for _ in range(9)]
        assert counts[0] == 3
        assert counts[-3:] == [1, 1, 1]
        got = [len(receiver.got) for receiver in address.receivers]
        self.turn(address, 6, 0.001), self.turn(address, 6, 0.001), self.turn(address, 6, 0.001)
        assert [len(receiver.got) for receiver in address.receivers] == [count + 6 for count in got]  # in turns

    def test_slow_consumers_share_the_messages(self, address: Address) -> None:
        assert [self.turn(address, 6, 2 * ANYCAST_QUICK_S) for _ in range(9)] == [3] * 9

    def test_consumer_gets_at_most_twice_what_it_has_answered(self, address: Address) -> None:
        for count in (3, 3, 3, 6, 6, 6):
            self.turn(address, count, 0.001)
        before = {receiver.name: len(receiver.got) for receiver in address.receivers}
        self.turn(address, 100, 0.001)
        assert max(len(receiver.got) - before[receiver.name] for receiver in address.receivers) <= 40

    def test_consumer_that_stops_answering_gets_its_share_again(self, address: Address) -> None:
        for _ in range(9):
            self.turn(address, 6, 0.001)
        address.hand_on([0] * 6)  # one consumer holds them
        address.site.now += 2 * ANYCAST_QUICK_S
        stopped = next(receiver for receiver in address.receivers if receiver.held)
        held = len(stopped.held)
        for _ in range(3):
            address.hand_on([0] * 6)
        assert len(stopped.held) - held <= 2 * 3

    def test_consumer_that_becomes_slow_shares_again(self, address: Address) -> None:
        for _ in range(9):
            self.turn(address, 6, 0.001)
        for _ in range(3):
            assert self.turn(address, 6, 2 * ANYCAST_QUICK_S) == 1
        assert self.turn(address, 6, 2 * ANYCAST_QUICK_S) == 3
