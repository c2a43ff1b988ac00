"""Messages to an anycast address without a consumer, over MQTT before version 5, which cannot report that."""

from __future__ import annotations

import pytest

from edge.broker.delivery import anycast
from edge.broker.limits import ANYCAST_ANSWER_S_MAX, ANYCAST_HELD_MAX
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, SubscribeOptions
from edge.broker.router import competing_consumers
from tests.unit.broker.reply_order import AnswerableConsumer, ReplyRig, Sender


class Patient(Sender):
    """Sender over a protocol that cannot report a missing consumer."""

    def waits_for_consumer(self) -> bool:
        return True


class Rig(ReplyRig):
    """Router without a consumer of `any/2` at first."""

    def __init__(self, *, in_order: bool = True) -> None:
        super().__init__()
        self.sender = Patient(in_order=in_order)

    def consume(self, credit: int = 100, address: str = "any/2") -> AnswerableConsumer:
        consumer = AnswerableConsumer(credit)
        self.router.subscriptions.subscribe(consumer, address, SubscribeOptions()).pump()
        return consumer

    def go(self, consumer: AnswerableConsumer) -> None:
        group = self.router.subscriptions.competing.anycast_group("any/2")
        self.router.subscriptions.unsubscribe(consumer, group, forget=False)

    @property
    def held_bytes(self) -> int:
        return self.router.subscriptions.competing._held.bytes


@pytest.mark.parametrize("address", ["any/2", "any/+", "any/#"])
def test_message_waits_for_the_first_consumer(address: str) -> None:
    rig = Rig()
    rig.publish("any/2", 1, 2)
    rig.publish("topic/nobody", 3)
    assert rig.sender.answers == []
    assert rig.held_bytes > 0
    consumer = rig.consume(address=address)
    assert rig.held_bytes == 0
    assert [body for _, _, body in consumer.got] == [b"1", b"2"]
    consumer.settle(b"1")
    consumer.settle(b"2", DeliveryOutcome.REJECTED)
    assert rig.sender.answers == [(1, None), (2, Refusal.REJECTED), (3, None)]
    rig.settled()


def test_message_waits_for_the_next_consumer_when_all_have_left() -> None:
    rig = Rig()
    first = rig.consume(credit=1)
    rig.publish("any/2", 1, 2)
    other = Sender()
    rig.sender, patient = other, rig.sender
    rig.publish("any/2", 3)
    rig.go(first)
    assert other.answers == [(3, Refusal.NO_CONSUMER)]
    assert patient.answers == []
    next_one = rig.consume()
    assert [body for _, _, body in next_one.got] == [b"1", b"2"]
    for body in (b"1", b"2"):
        next_one.settle(body)
    assert patient.answers == [(1, None), (2, None)]
    assert rig.held_bytes == 0


@pytest.mark.parametrize(
    "outcome", [DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED, DeliveryOutcome.MODIFIED_UNDELIVERABLE]
)
def test_message_waits_for_another_consumer_when_all_have_released_it(outcome: DeliveryOutcome) -> None:
    rig = Rig()
    first = rig.consume()
    rig.publish("any/2", 1)
    first.settle(b"1", outcome)
    assert (rig.sender.answers, len(first.got)) == ([], 1)
    second = rig.consume()
    assert [body for _, _, body in second.got] == [b"1"]
    second.settle(b"1")
    assert rig.sender.answers == [(1, None)]


@pytest.mark.parametrize("there", [False, True])
def test_wait_is_limited(there: bool) -> None:
    rig = Rig()
    if there:
        consumer = rig.consume()
    rig.publish("any/2", 1)
    if there:
        consumer.settle(b"1", DeliveryOutcome.RELEASED)
    rig.now_s = ANYCAST_ANSWER_S_MAX - 0.1
    rig.router.tick()
    assert rig.sender.answers == []
    rig.now_s = ANYCAST_ANSWER_S_MAX
    rig.router.tick()
    assert rig.sender.answers == [(1, Refusal.NO_ANSWER)]
    assert rig.held_bytes == 0
    assert rig.consume().got == []
    rig.settled()


def test_messages_of_one_sender_are_bounded() -> None:
    rig = Rig()
    for token in range(ANYCAST_HELD_MAX):
        rig.publish(f"any/{2 + token % 7}", token)
    assert rig.sender.answers == []
    rig.publish("any/2", 1_000)
    assert rig.sender.answers == [(1_000, Refusal.NO_CONSUMER)], "at once: its connection ends"
    another = Rig()
    another.publish("any/2", *range(ANYCAST_HELD_MAX + 1))
    assert len(another.sender.answers) == ANYCAST_HELD_MAX + 1


def test_bytes_of_all_senders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anycast, "ANYCAST_HELD_BYTES_MAX", 2_000)
    rig = Rig(in_order=False)
    for token in range(10):
        rig.publish(f"any/{token}", token)
    held = 10 - len(rig.sender.answers)
    assert 0 < held < 10
    assert {why for _, why in rig.sender.answers} == {Refusal.NO_CONSUMER}
    assert rig.held_bytes <= 2_000


def test_addresses_with_waiting_messages_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competing_consumers, "ANYCAST_GROUPS_MAX", 2)
    rig = Rig()
    rig.publish("any/2", 1)
    for i in range(5):
        rig.sender, patient = Sender(), rig.sender
        rig.publish(f"any/other{i}", 2)
        rig.sender = patient
    consumer = rig.consume()
    assert [body for _, _, body in consumer.got] == [b"1"]


def test_other_senders_are_answered_at_once() -> None:
    rig = Rig()
    rig.sender = Sender()
    rig.publish("any/2", 1)
    assert rig.sender.answers == [(1, Refusal.NO_CONSUMER)]
    assert rig.held_bytes == 0
