"""Messages to topics without a subscriber: their answer, their counter, and the addresses that are reported."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge.message import RETAIN, Run
from edge.broker.limits import UNROUTED_ADDRESSES_MAX, UNROUTED_S
from edge.broker.model.interfaces import Acceptance, MessageCounts, Origin, Refusal, SubscribeOptions
from edge.broker.router.batch import Publication
from edge.broker.router.unrouted import UnroutedMessages
from tests.support.router_site import RouterSite

Answers = list[tuple[int, Refusal | Acceptance]]


class Publisher(Origin):
    """Origin that records its answers."""

    def __init__(self, site: RouterSite, *, in_order: bool = False) -> None:
        self.name = "publisher"
        self.in_order = in_order
        self.answers: Answers = []
        self._site = site

    def publish(self, address: str, *tokens: int, flags: int = 1) -> None:
        self._site.router.publish(
            Publication(self, Run(address, self.name, flags, b"", [b"x" for _ in tokens]), tokens)
        )

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers += [(token, Acceptance.ACCEPTED) for token in tokens]

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        self.answers += [(token, Acceptance.UNROUTED) for token in tokens]

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers += [(token, why) for token in tokens]


class TestAnswers:
    def test_topic_without_a_subscriber_is_answered_unrouted_at_once(self) -> None:
        site = RouterSite()
        publisher = Publisher(site)
        publisher.publish("topic/a", 1, 2)
        assert publisher.answers == [(1, Acceptance.UNROUTED), (2, Acceptance.UNROUTED)]
        assert (site.router.figures.unrouted, site.router.figures.acknowledged) == (2, 2)
        assert site.router.figures.stored == 0

    def test_message_to_a_connected_subscriber_is_routed(self) -> None:
        site = RouterSite()
        site.consumer("topic/a")
        publisher = Publisher(site)
        publisher.publish("topic/a", 1)
        assert publisher.answers == [(1, Acceptance.ACCEPTED)]
        assert site.router.figures.unrouted == 0

    def test_message_to_a_durable_subscription_is_stored(self) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/a", options=SubscribeOptions(durable_name="d"))
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        publisher = Publisher(site)
        publisher.publish("topic/a", 1)
        site.settle_down()
        assert publisher.answers == [(1, Acceptance.ACCEPTED)]
        assert (site.router.figures.unrouted, site.router.figures.stored) == (0, 1)

    def test_retained_message_is_not_unrouted(self) -> None:
        site = RouterSite()
        publisher = Publisher(site)
        publisher.publish("topic/a", 1, flags=1 | RETAIN)
        site.settle_down()
        assert publisher.answers == [(1, Acceptance.ACCEPTED)]
        assert site.router.figures.unrouted == 0

    @pytest.mark.parametrize("in_order", [False, True])
    def test_answer_waits_behind_older_messages_of_its_sender(self, in_order: bool) -> None:
        site = RouterSite()
        publisher = Publisher(site, in_order=in_order)
        if in_order:  # an anycast message without a consumer's answer holds all later ones
            site.consumer("anycast/a")
            publisher.publish("anycast/a", 1)
        else:
            publisher.publish("queue/a", 1)
        publisher.publish("topic/a", 2)
        assert publisher.answers == []
        if in_order:
            site.router.answers.expire()
            site.settle_down(wait_s=60)
        site.settle_down()
        assert [answer for _, answer in publisher.answers][1] is Acceptance.UNROUTED
        assert [token for token, _ in publisher.answers] == [1, 2]

    def test_messages_without_an_answer_count(self) -> None:
        site = RouterSite()
        site.send("topic/a", b"1", b"2", b"3", flags=0)
        assert site.router.figures.unrouted == 3

    def test_queue_stores_without_a_consumer(self) -> None:
        site = RouterSite()
        site.send("queue/a", b"1", b"2")
        assert (site.router.figures.unrouted, site.router.figures.stored) == (0, 2)


class TestAddresses:
    def test_address_with_a_new_subscriber_is_no_longer_unrouted(self) -> None:
        site = RouterSite()
        site.send("topic/a/b", b"1")
        assert [one.address for one in site.router.unrouted] == ["topic/a/b"]
        assert site.router.is_unrouted("topic/a/b")
        site.consumer("topic/#")
        assert not site.router.is_unrouted("topic/a/b")

    def test_only_topics_are_unrouted(self) -> None:
        assert not RouterSite().router.is_unrouted("queue/a")

    def test_address_is_reported_for_a_while_after_its_last_message(self) -> None:
        now = [0.0]
        unrouted = UnroutedMessages(MessageCounts(), lambda: now[0])
        unrouted.note("a", 2)
        now[0] = UNROUTED_S - 1
        unrouted.note("b", 1)
        unrouted.note("a", 3)
        assert [(one.address, one.messages) for one in unrouted] == [("a", 5), ("b", 1)]
        now[0] = 2 * UNROUTED_S
        assert list(unrouted) == []

    def test_oldest_address_is_removed_at_the_limit(self) -> None:
        figures = MessageCounts()
        unrouted = UnroutedMessages(figures, lambda: 0.0)
        for number in range(UNROUTED_ADDRESSES_MAX + 1):
            unrouted.note(f"topic/{number}", 1)
        names = [one.address for one in unrouted]
        assert len(names) == UNROUTED_ADDRESSES_MAX
        assert (names[0], "topic/0" in names) == (f"topic/{UNROUTED_ADDRESSES_MAX}", False)
        assert figures.unrouted == UNROUTED_ADDRESSES_MAX + 1
