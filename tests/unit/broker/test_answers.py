"""Answers wait for the commit of their message, whoever seals it, and an exception stays with its origin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from bridge.message import RETAIN, Run
from edge.broker.delivery.pressure import SubscriberPace
from edge.broker.model.interfaces import DeliveryOutcome, Refusal
from edge.broker.router.batch import Publication
from edge.broker.store.errors import StoreError, StoreFull
from tests.support.router_site import RecordingConsumer, RouterSite, SilentOrigin

SECRET = b"not for the log"


class Sender(SilentOrigin):
    """Origin that records its answers, and raises on request."""

    def __init__(self, site: RouterSite, name: str = "sender", *, fails: bool = False) -> None:
        self.name = name
        self.fails = fails
        self.told: list[tuple[int, Refusal | None]] = []
        self.aborted = 0
        self._site = site

    def publish(self, address: str, *tokens: int, flags: int = 1) -> None:
        bodies = [SECRET + str(token).encode() for token in tokens]
        self._site.router.publish(Publication(self, Run(address, self.name, flags, b"", bodies), tokens))

    def accepted(self, tokens: Sequence[int]) -> None:
        if self.fails:
            raise ValueError(f"cannot write the answer to {SECRET!r}")
        self.told += [(token, None) for token in tokens]

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if self.fails:
            raise ValueError(f"cannot write the answer to {SECRET!r}")
        self.told += [(token, why) for token in tokens]

    def abort(self) -> None:
        self.aborted += 1
        if self.fails:
            raise OSError("no connection")


def callbacks(site: RouterSite) -> None:
    while site.posted:
        site.posted.popleft()()


def bodies(consumer: RecordingConsumer) -> list[str]:
    return [body.removeprefix(SECRET.decode()) for body, _ in consumer.got]


class TestIsolation:
    def test_only_the_origin_that_raises_is_ended(self, caplog: pytest.LogCaptureFixture) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        before, broken, after = Sender(site, "before"), Sender(site, "broken", fails=True), Sender(site, "after")
        for number, sender in enumerate((before, broken, after)):
            sender.publish("queue/a", number)
        broken.publish("queue/a", 3)
        with caplog.at_level(logging.WARNING):
            site.settle_down()
        assert (before.told, after.told) == ([(0, None)], [(2, None)])
        assert bodies(consumer) == ["0", "1", "2", "3"]
        assert broken.aborted == 1
        assert sum("its connection ends" in record.getMessage() for record in caplog.records) == 1
        assert SECRET.decode() not in caplog.text

    def test_only_the_origin_that_raises_on_refusal_is_ended(self) -> None:
        site = RouterSite()
        broken, after = Sender(site, "broken", fails=True), Sender(site, "after")
        site.store.failure = StoreFull("no space left")
        broken.publish("queue/a", 1)
        after.publish("queue/a", 2)
        site.settle_down()
        assert after.told == [(2, Refusal.FULL)]
        assert broken.aborted == 1

    def test_ordered_answers_are_isolated_from_each_other(self) -> None:
        site = RouterSite()
        consumer = site.consumer("anycast/a")
        broken = Sender(site, "broken", fails=True)
        broken.in_order = True
        broken.publish("anycast/a", 1)
        broken.publish("queue/a", 2)
        site.settle_down()
        consumer.answer(DeliveryOutcome.ACCEPTED)
        assert broken.aborted == 1

    def test_next_origin_of_an_anycast_address_receives_its_answer(self) -> None:
        site = RouterSite()
        consumer = site.consumer("anycast/a")
        broken, after = Sender(site, "broken", fails=True), Sender(site, "after")
        broken.publish("anycast/a", 1)
        broken_at = consumer.last
        after.publish("anycast/a", 2)
        assert broken_at is not None
        subscription, first = broken_at
        subscription.settle(consumer, first, first + 1, DeliveryOutcome.ACCEPTED)
        assert after.told == [(2, None)]


class Careless(Sender):
    """Sender that raises when it is notified of credit, or asked to continue."""

    def credit_changed(self, address: str) -> None:
        self.told.append((0, None))
        if self.fails:
            raise ValueError(address)

    def resume_publishing(self) -> None:
        self.credit_changed("")


class TestCredit:
    def test_sender_that_raises_does_not_block_credit_of_others(self) -> None:
        site = RouterSite()
        senders = [Careless(site, name, fails=name == "broken") for name in ("before", "broken", "after")]
        for sender in senders:
            assert site.router.credit.of(sender, "anycast/a") == 0
            site.router.credit.of(sender, "anycast/b")
        site.consumer("anycast/a")
        assert [len(sender.told) > 0 for sender in senders] == [True] * 3
        assert senders[1].aborted >= 1
        for sender in senders:
            site.router.forget_origin(sender)
        site.consumer("anycast/#", "other")
        assert len(site.router._watchers) == 0

    def test_only_senders_without_credit_are_notified_and_each_once(self) -> None:
        """The cost of a message does not depend on the number of senders to its address."""
        site = RouterSite()
        senders = [Careless(site, name) for name in ("with", "without")]
        consumer = site.consumer("anycast/a", credit=1)
        assert site.router.credit.of(senders[0], "anycast/a") == 1
        senders[0].publish("anycast/a", 1)
        assert site.router.credit.of(senders[1], "anycast/a") == 0
        assert consumer.last is not None
        subscription, first = consumer.last
        subscription.settle(consumer, first, first, DeliveryOutcome.ACCEPTED)
        assert [sender.told for sender in senders] == [[(1, None)], []]  # the consumer has no credit yet
        for _ in range(3):
            consumer.credit = 5
            subscription.pump()
        assert [sender.told for sender in senders] == [[(1, None)], [(0, None)]]

    def test_sender_notified_of_credit_may_remove_another(self) -> None:
        site = RouterSite()

        class Ending(Careless):
            def credit_changed(self, address: str) -> None:
                super().credit_changed(address)
                for sender in senders:
                    site.router.forget_origin(sender)

        senders = [Ending(site, name) for name in ("first", "second")]
        for sender in senders:
            assert site.router.credit.of(sender, "anycast/a") == 0
        site.consumer("anycast/a")
        assert [len(sender.told) for sender in senders] == [1, 1]
        assert len(site.router._watchers) == 0

    def test_sender_that_raises_on_resume_does_not_block_others(self) -> None:
        site = RouterSite()
        slow = Pressed()
        pressure = site.router.pool.pressure
        senders = [Careless(site, name, fails=name == "broken") for name in ("before", "broken", "after")]
        for sender in senders:
            pressure.press(slow, sender)
        pressure.relieve(slow)
        assert [len(sender.told) for sender in senders] == [1, 1, 1]
        assert senders[1].aborted == 1


class Pressed:
    """A subscription that senders wait for."""

    pace = SubscriberPace.KEEPING_UP

    def pump(self) -> None:
        """Do nothing: no message waits."""


class TestTickets:
    @pytest.mark.parametrize("flags", [1, 1 | RETAIN])
    @pytest.mark.parametrize(
        "sealed",
        [
            pytest.param(lambda site: site.store.commits.flush(), id="somebody else seals the group"),
            pytest.param(lambda site: site.store.close(), id="the store is closed"),
            pytest.param(lambda site: site.router.flush(), id="the router seals it"),
        ],
    )
    def test_failed_commit_accepts_nothing(self, sealed: Callable[[RouterSite], object], flags: int) -> None:
        site = RouterSite()
        sender = Sender(site)
        site.store.failure = StoreFull("no space left")
        sender.publish("queue/a" if flags == 1 else "topic/a", 1, flags=flags)
        sealed(site)
        site.router.flush()
        assert sender.told in ([], [(1, Refusal.FULL)])
        callbacks(site)
        site.router.flush()
        assert sender.told == [(1, Refusal.FULL)]

    def test_message_during_a_foreign_commit_waits_for_its_own_commit(self) -> None:
        site = RouterSite()
        sender = Sender(site)
        sender.publish("queue/a", 1)
        site.store.commits.flush()
        sender.publish("queue/a", 2)
        site.store.failure = StoreError("the medium failed")  # belongs to the commit that starts when this one ends
        site.posted.popleft()()
        assert sender.told == [(1, None)]
        callbacks(site)
        assert sender.told == [(1, None), (2, Refusal.STORE_FAILED)]

    def test_foreign_flush_answers_what_it_committed(self) -> None:
        site = RouterSite()
        sender = Sender(site)
        sender.publish("queue/a", 1)
        sender.publish("topic/nobody", 2)
        site.store.commits.flush()
        assert sender.told == []
        callbacks(site)
        assert sender.told == [(1, None), (2, None)]

    def test_closed_store_refuses(self) -> None:
        site = RouterSite()
        sender = Sender(site)
        sender.publish("topic/a", 1, flags=1 | RETAIN)
        site.store.close()
        assert sender.told == [(1, None)]
        sender.publish("topic/a", 2, flags=1 | RETAIN)
        site.router.flush()
        assert sender.told == [(1, None), (2, Refusal.STORE_FAILED)]
