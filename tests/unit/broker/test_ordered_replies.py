"""Answers keep the order of the messages where consumers give some of them (`edge.broker.router.ordered_replies`)."""

from __future__ import annotations

import pytest

from edge.broker.delivery import AnycastGroup
from edge.broker.limits import ANYCAST_ANSWER_S_MAX
from edge.broker.model.interfaces import DeliveryOutcome, Refusal
from edge.broker.store.errors import StoreFull
from tests.unit.broker.reply_order import ReplyRig


def test_later_answers_wait_for_the_consumer() -> None:
    rig = ReplyRig()
    rig.publish("any/1", 1)
    rig.publish("topic/nobody", 2)
    rig.publish("q/1", 3)
    rig.publish("multi/1", 4)
    rig.publish("any/none", 5)
    rig.commit()
    assert rig.sender.answers == []
    rig.consumer.settle(b"1")
    nobody, none_now = Refusal.NO_CONSUMER, Refusal.NO_CONSUMER_CONNECTED
    assert rig.sender.answers == [(1, None), (2, None), (3, None), (4, none_now), (5, nobody)]
    rig.settled()


def test_answer_of_the_consumer_waits_for_an_older_commit() -> None:
    rig = ReplyRig()
    rig.publish("q/1", 1)
    rig.publish("any/1", 2)
    rig.publish("q/1", 3)
    rig.publish("topic/nobody", 4)
    rig.consumer.settle(b"2", DeliveryOutcome.REJECTED)
    assert rig.sender.answers == []
    rig.commit()
    assert rig.sender.answers == [(1, None), (2, Refusal.REJECTED), (3, None), (4, None)]
    rig.settled()


def test_failed_commit_keeps_the_order() -> None:
    rig = ReplyRig()
    rig.publish("any/1", 1)
    rig.publish("q/1", 2)
    rig.store.failure = StoreFull("no space left")
    rig.commit()
    rig.store.failure = None
    rig.publish("q/1", 3)
    rig.commit()
    rig.consumer.settle(b"1")
    assert rig.sender.answers == [(1, None), (2, Refusal.FULL), (3, None)]
    rig.settled()


def test_message_without_a_commit_is_not_refused_with_a_failed_one() -> None:
    rig = ReplyRig()
    rig.publish("q/1", 1)
    rig.publish("topic/nobody", 2)
    rig.publish("multi/1", 3)
    rig.publish("q/1", 4)
    rig.store.failure = StoreFull("no space left")
    rig.commit()
    nobody = Refusal.NO_CONSUMER_CONNECTED
    assert rig.sender.answers == [(1, Refusal.FULL), (2, None), (3, nobody), (4, Refusal.FULL)]
    rig.settled()


def test_messages_of_one_run_may_be_settled_in_reverse() -> None:
    rig = ReplyRig()
    rig.publish("any/1", 1, 2, 3)
    rig.consumer.settle(b"3")
    rig.consumer.settle(b"2", DeliveryOutcome.REJECTED)
    assert rig.sender.answers == []
    rig.consumer.settle(b"1")
    assert rig.sender.answers == [(1, None), (2, Refusal.REJECTED), (3, None)]
    rig.settled()


def test_messages_of_a_departed_consumer_are_refused() -> None:
    rig = ReplyRig()
    rig.publish("any/1", 1, 2)
    rig.publish("q/1", 3)
    rig.commit()
    rig.router.subscriptions.unsubscribe(rig.consumer, rig.group, forget=False)
    assert rig.sender.answers == [(1, Refusal.NO_CONSUMER), (2, Refusal.NO_CONSUMER), (3, None)]
    rig.settled()


@pytest.mark.parametrize("credit", [0, 2, 100])
def test_consumer_that_never_answers_times_out(credit: int) -> None:
    """The time of its messages ends, delivered or waiting, and they are dropped."""
    rig = ReplyRig(credit=credit)
    rig.publish("any/1", 1, 2, 3)
    rig.publish("q/1", 4)
    rig.commit()
    rig.now_s = ANYCAST_ANSWER_S_MAX - 0.1
    rig.publish("any/1", 5)
    rig.router.tick()
    assert rig.sender.answers == []
    rig.now_s = ANYCAST_ANSWER_S_MAX
    rig.router.tick()
    late = Refusal.NO_ANSWER
    assert rig.sender.answers == [(1, late), (2, late), (3, late), (4, None)]
    assert rig.router.figures.refused == 3
    rig.consumer.credit += 10
    rig.group.pump()
    expected = [*[b"1", b"2", b"3"][:credit], b"5"]
    assert [body for _, _, body in rig.consumer.got] == expected
    for body in expected:
        rig.consumer.settle(body)
    assert rig.sender.answers[4:] == [(5, None)]
    assert rig.router.figures.acknowledged == 2
    rig.settled()
    assert isinstance(rig.group, AnycastGroup)
    assert rig.group.credit == rig.consumer.credit  # no message counts as waiting


def test_unordered_senders_are_answered_message_by_message() -> None:
    """Each answer is sent at once over AMQP, as a disposition names its deliveries."""
    rig = ReplyRig(in_order=False)
    rig.publish("any/1", 1)
    rig.publish("q/1", 2)
    rig.commit()
    assert rig.sender.tokens == [2]
    rig.consumer.settle(b"1")
    assert rig.sender.tokens == [2, 1]
    rig.settled()
