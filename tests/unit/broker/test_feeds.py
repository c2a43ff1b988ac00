"""Delivery follows the log of a message: whatever changes, raises or is missed during a commit, acknowledged messages
are delivered and no cursor passes an undelivered one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from bridge.amqp_values import DescribedValue, Ubyte, Ulong, encode
from bridge.message import AMQP, Run, Stored
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.queue import QueueOrder
from edge.broker.model.address_policy import AddressPolicy, Durability, DurabilityMode
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import SubscribeOptions
from tests.support.router_site import RecordingConsumer, RouterSite, SilentOrigin, bodies_of

SECRET = b"not for the log"
DURABLE = SubscribeOptions(durable_name="kept")
TOPICS = AddressTable([AddressRule("plant/#", AddressType.TOPIC)])


class Asking(SilentOrigin):
    """Origin that remembers the accepted tokens."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def accepted(self, tokens: Sequence[int]) -> None:
        self.taken += tokens


class Failing(RecordingConsumer):
    """Consumer that raises on delivery, with the message in the text of the exception."""

    def __init__(self, name: str = "failing", failures: int = 1_000_000) -> None:
        super().__init__(name)
        self.failures = failures
        self.aborted = 0

    def take(self, subscription: Subscription, stored: Stored) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError(f"cannot send {stored.run.bodies!r}")
        super().take(subscription, stored)

    def abort(self) -> None:
        self.aborted += 1


class Unknowing(Failing):
    """Consumer that raises when the router reads its credit, once it has joined."""

    @property  # type: ignore[override]
    def credit(self) -> int:
        if self.failures and getattr(self, "joined", None) is not None:
            raise ValueError(SECRET.decode())
        return 1000

    @credit.setter
    def credit(self, credit: int) -> None:
        """Ignore the value: credit is constant."""


def sealed(site: RouterSite, address: str, *bodies: bytes) -> Asking:
    """Publish and start the commit; `settle_down` of the site ends it."""
    origin = Asking()
    site.router.publish(Publication(origin, Run(address, "device", 1, b"", list(bodies)), range(len(bodies))))
    site.router.flush()
    assert site.store.commits.committing
    return origin


def joined(site: RouterSite, consumer: Any, address: str, options: SubscribeOptions) -> Any:
    consumer.joined = site.router.subscriptions.subscribe(consumer, address, options)
    consumer.joined.pump()
    site.settle_down()
    return consumer


def open_messages(site: RouterSite, name: str) -> int:
    """Return the count of messages that no cursor of this name is done with."""
    site.settle_down()
    site.settle_down(wait_s=1.0)  # so that its moves are written
    records = [record for record in site.store.cursor_records() if record.name == name]
    done = sum(last - first + 1 for record in records for first, last in record.acknowledged)
    return sum(site.store.logs.bounds(record.log)[1] - record.position for record in records) - done


class TestConfiguredWhileACommitRuns:
    @pytest.mark.parametrize(
        "rules",
        [
            pytest.param([AddressRule("plant/#", AddressType.QUEUE)], id="the topic is a queue"),
            pytest.param([AddressRule("plant/#", AddressType.ANYCAST)], id="the topic is anycast"),
            pytest.param(
                [AddressRule("plant/#", AddressType.TOPIC), AddressRule("plant/press/#", AddressType.TOPIC)],
                id="a narrower rule",
            ),
            pytest.param([], id="the rule is gone"),
        ],
    )
    def test_durable_subscriber_gets_messages_stored_under_older_rules(self, rules: list[AddressRule]) -> None:
        site = RouterSite()
        site.router.reconfigure(TOPICS)
        consumer = site.consumer("plant/#", options=DURABLE)
        site.send("plant/press/1", b"before")
        origin = sealed(site, "plant/press/1", b"a", b"b")
        site.router.reconfigure(AddressTable(rules))
        site.settle_down()
        assert origin.taken == [0, 1]
        assert bodies_of(consumer) == ["before", "a", "b"]
        consumer.answer(DeliveryOutcome.ACCEPTED, 2)
        assert open_messages(site, "kept") == 1  # the consumer still holds "before"

    def test_queue_consumer_gets_messages_stored_before_the_queue_became_a_topic(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        origin = sealed(site, "queue/a", b"a")
        site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.TOPIC)]))
        site.settle_down()
        assert origin.taken == [0]
        assert bodies_of(consumer) == ["a"]

    def test_cursor_of_an_absent_subscriber_does_not_skip_messages(self) -> None:
        site = RouterSite()
        site.router.reconfigure(TOPICS)
        consumer = site.consumer("plant/#", options=DURABLE)
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        sealed(site, "plant/press/1", b"a")
        site.router.reconfigure(
            AddressTable([AddressRule("plant/#", AddressType.TOPIC), AddressRule("plant/press/#", AddressType.TOPIC)])
        )
        assert open_messages(site, "kept") == 1
        again = site.consumer("plant/#", options=DURABLE)
        assert bodies_of(again) == ["a"]

    def test_position_in_one_log_does_not_affect_the_cursor_in_another(self) -> None:
        site = RouterSite()
        site.router.reconfigure(TOPICS)
        consumer = site.consumer("plant/#", options=DURABLE)
        other = site.consumer("plant/other", "other", options=SubscribeOptions(durable_name="other"))
        site.send("plant/press/1", *[b"%d" % i for i in range(10)])
        sealed(site, "plant/press/1", b"late")
        sealed_other = Asking()
        site.router.publish(Publication(sealed_other, Run("plant/other", "device", 1, b"", [b"x"]), [0]))
        site.router.reconfigure(
            AddressTable([AddressRule("plant/#", AddressType.TOPIC), AddressRule("plant/press/#", AddressType.TOPIC)])
        )
        site.settle_down()  # no ValueError: position ... is not committed yet
        assert bodies_of(consumer)[-2:] == ["late", "x"]
        assert bodies_of(other) == ["x"]

    def test_redeclared_subscription_does_not_follow_the_log_twice(self) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/a", options=DURABLE)
        again = SubscribeOptions(durable_name="kept", no_local=True)
        consumer.joined = site.router.subscriptions.subscribe(consumer, "topic/a", again)
        site.send("topic/a", b"once")
        assert bodies_of(consumer) == ["once"]


class TestIsolation:
    def test_consumer_that_raises_loses_its_subscription_and_others_are_unaffected(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = RouterSite()
        failing = joined(site, Failing(), "topic/#", SubscribeOptions(durable_name="failing"))
        before = site.consumer("topic/#", "before", options=SubscribeOptions(durable_name="before"))
        after = site.consumer("topic/#", "after", options=SubscribeOptions(durable_name="after"))
        for body in (SECRET, b"2"):
            site.send("topic/a", body)
        assert bodies_of(before) == bodies_of(after) == [SECRET.decode(), "2"]
        assert failing.aborted == 1
        told = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(told) == 1
        assert "not for the log" not in caplog.text
        assert "ValueError" in caplog.text
        assert open_messages(site, "failing") == 2

    def test_message_it_failed_to_take_is_delivered_when_it_returns(self) -> None:
        site = RouterSite()
        failing = joined(site, Failing(failures=1), "topic/#", DURABLE)
        site.send("topic/a", b"1")
        assert bodies_of(failing) == []
        joined(site, failing, "topic/#", DURABLE)
        assert bodies_of(failing) == ["1"]

    def test_message_it_failed_to_take_goes_to_another_consumer_of_the_queue(self) -> None:
        site = RouterSite()
        joined(site, Failing(), "queue/a", SubscribeOptions())
        other = site.consumer("queue/a", "other")
        site.send("queue/a", b"1", b"2")
        assert sorted(bodies_of(other)) == ["1", "2"]

    def test_message_of_a_priority_queue_goes_to_another_consumer(self) -> None:
        site = RouterSite()
        header = encode(DescribedValue(Ulong(0x70), [True, Ubyte(9)]))
        site.send("queue/a", b"\x00\x53\x75\xa0\x01a", properties=header, flags=AMQP | 1)
        first = site.consumer("queue/a", "first", credit=0)
        joined(site, Failing(), "queue/a", SubscribeOptions())
        site.send("queue/a", b"\x00\x53\x75\xa0\x01b", properties=header, flags=AMQP | 1)
        first.credit = 10
        assert first.joined is not None
        first.joined.pump()
        site.settle_down()
        assert len(first.got) == 2

    @pytest.mark.parametrize("address", ["topic/a", "multicast/a", "anycast/a"])
    def test_publisher_is_unaffected_by_a_live_consumer_that_raises(self, address: str) -> None:
        site = RouterSite()
        failing = joined(site, Failing(), address, SubscribeOptions())
        other = site.consumer(address, "other")
        site.send(address, b"1")
        site.send(address, b"2")
        assert sorted(bodies_of(other)) == ["1", "2"]
        assert failing.aborted == 1

    def test_message_of_a_shared_subscription_goes_to_another_consumer(self) -> None:
        site = RouterSite()
        shared = SubscribeOptions(share_name="s")
        joined(site, Failing(), "topic/a", shared)
        other = site.consumer("topic/a", "other", options=shared)
        site.send("topic/a", b"1")
        site.send("topic/a", b"2")
        assert sorted(bodies_of(other)) == ["1", "2"]

    @pytest.mark.parametrize(
        ("address", "options"),
        [
            ("topic/a", SubscribeOptions(durable_name="unknowing")),
            ("topic/a", SubscribeOptions(share_name="s")),
            ("topic/a", SubscribeOptions()),
            ("queue/a", SubscribeOptions()),
            ("anycast/a", SubscribeOptions()),
        ],
    )
    def test_consumer_with_a_failing_selection_is_ended(
        self, address: str, options: SubscribeOptions, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = RouterSite()
        unknowing = Unknowing()
        unknowing.joined = site.router.subscriptions.subscribe(unknowing, address, options)
        other_options = SubscribeOptions(durable_name="other") if options.durable_name else options
        other = site.consumer(address, "other", options=other_options)
        for body in (b"1", b"2"):
            site.send(address, body)
        site.settle_down()
        assert sorted(bodies_of(other)) == ["1", "2"]
        assert unknowing.aborted == 1
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
        assert SECRET.decode() not in caplog.text
        if options.durable_name:
            unknowing.failures = 0
            site.router.subscriptions.unsubscribe(unknowing, unknowing.joined, forget=False)
            joined(site, unknowing, address, options)
            assert bodies_of(unknowing) == ["1", "2"]

    def test_consumer_of_a_priority_queue_with_a_failing_selection_is_ended(self) -> None:
        site = RouterSite()
        header = encode(DescribedValue(Ulong(0x70), [True, Ubyte(9)]))
        other = site.consumer("queue/a", "other")
        unknowing = Unknowing()
        unknowing.joined = site.router.subscriptions.subscribe(unknowing, "queue/a", SubscribeOptions())
        for body in (b"a", b"b"):
            site.send("queue/a", b"\x00\x53\x75\xa0\x01" + body, properties=header, flags=AMQP | 1)
        assert len(other.got) == 2
        assert unknowing.aborted >= 1

    def test_message_being_dropped_is_not_delivered_by_a_restarted_subscription(self) -> None:
        site = RouterSite(queue=AddressPolicy(deadletter="deadletter/dead"))
        consumer = site.consumer("queue/a", credit=1)
        site.send("queue/a", b"1")
        consumer.answer(DeliveryOutcome.REJECTED)
        queue = site.router.queues["queue/a"]
        assert queue.dead_lettering.leaving
        site.router.feeds.handle_error(queue, RuntimeError())
        consumer.credit = 10
        site.settle_down(wait_s=1.0)
        assert bodies_of(consumer) == ["1"]
        assert len(site.dead_letters) == 1
        assert site.unacknowledged("queue/a") == 0

    @pytest.mark.parametrize("method", ["arrived", "pump", "wants", "handle_next"])
    def test_subscription_that_raises_restarts_from_the_store(
        self, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = RouterSite()
        broken = site.consumer("topic/#", "broken", credit=2, options=SubscribeOptions(durable_name="broken"))
        other = site.consumer("topic/#", "other", options=SubscribeOptions(durable_name="other"))
        site.send("topic/a", b"1")
        site.send("topic/a", b"2")
        part = site.router.durable_subscriptions["broken"].parts[0]

        def raising(*_: Any) -> None:
            raise RuntimeError(SECRET.decode())

        with monkeypatch.context() as patch:
            patch.setattr(part, method, raising)
            for body in (b"3", b"4"):
                site.send("topic/a", body)
            broken.credit += 1
            site.settle_down()
        assert bodies_of(other) == ["1", "2", "3", "4"]
        assert SECRET.decode() not in caplog.text
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) <= 1
        broken.credit += 10
        part.pump()
        site.settle_down(wait_s=1.0)
        assert bodies_of(broken) == ["1", "2", "3", "4"]
        subscription, position = broken.last or (None, 0)
        assert subscription is part
        part.settle(broken, 0, position, DeliveryOutcome.ACCEPTED)
        assert open_messages(site, "broken") == 0


class TestWatermark:
    def test_missed_wake_only_delays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/#", options=DURABLE)
        queue = site.consumer("queue/a", "queue")
        with monkeypatch.context() as patch:
            patch.setattr(LogFeeds, "committed", lambda *_: None)
            sealed(site, "topic/a", b"1")
            while site.posted:
                site.posted.popleft()()
            sealed(site, "queue/a", b"1")
            while site.posted:
                site.posted.popleft()()
        assert bodies_of(consumer) == bodies_of(queue) == []
        assert open_messages(site, "kept") == 1
        site.settle_down()
        assert bodies_of(consumer) == bodies_of(queue) == ["1"]

    def test_messages_after_a_missed_wake_follow_the_missed_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/#", options=DURABLE)
        with monkeypatch.context() as patch:
            patch.setattr(LogFeeds, "committed", lambda *_: None)
            sealed(site, "topic/a", b"1")
            while site.posted:
                site.posted.popleft()()
        sealed(site, "topic/a", b"2")
        while site.posted:
            site.posted.popleft()()
        assert bodies_of(consumer) == ["1", "2"]

    def test_cursor_without_backlog_moves_exactly_to_the_watermark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        site.consumer("topic/a", "a", options=SubscribeOptions(durable_name="a"))
        site.consumer("topic/b", "b", options=SubscribeOptions(durable_name="b"))
        site.send("topic/a", b"1")
        assert open_messages(site, "b") == 0
        with monkeypatch.context() as patch:
            patch.setattr(LogFeeds, "committed", lambda *_: None)
            patch.setattr(LogFeeds, "_find_missed", lambda *_: None)
            sealed(site, "topic/a", b"2")
            assert open_messages(site, "b") == 1

    def test_all_of_many_cursors_move(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.delivery.feeds.CURSORS_MOVED_MAX", 3)
        site = RouterSite()
        for i in range(10):
            site.consumer("topic/other", f"{i}", options=SubscribeOptions(durable_name=f"{i}"))
        site.consumer("topic/a", "a", options=SubscribeOptions(durable_name="a"))
        site.send("topic/a", b"1")
        assert [open_messages(site, f"{i}") for i in range(10)] == [0] * 10

    def test_runs_in_memory_are_notified_by_the_same_feed_in_order(self) -> None:
        site = RouterSite(topic=AddressPolicy(durability=Durability(DurabilityMode.MEMORY)))
        consumer = site.consumer("topic/#", options=DURABLE)
        site.send("topic/a", b"0")  # reserves numbers
        for i in range(1, 5):
            site.router.publish(Publication(SilentOrigin(), Run("topic/a", "device", 1, b"", [b"%d" % i]), ()))
        site.router.publish(
            Publication(SilentOrigin(), Run("topic/new", "device", 1, b"", [b"5"]), ())
        )  # waits for a commit
        site.router.publish(Publication(SilentOrigin(), Run("topic/a", "device", 1, b"", [b"6"]), ()))
        site.settle_down()
        assert bodies_of(consumer) == ["0", "1", "2", "3", "4", "5", "6"]

    def test_commit_costs_nothing_for_subscriptions_that_do_not_match(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        for i in range(50):
            site.consumer(f"topic/{i}", f"{i}", options=SubscribeOptions(durable_name=f"{i}"))
        seen: list[str] = []
        for name, durable in site.router.durable_subscriptions.items():
            part = durable.parts[0]
            monkeypatch.setattr(part, "arrived", lambda _, name=name: seen.append(name))
        site.send("topic/7", b"1")
        assert seen == ["7"]

    def test_subscription_with_a_backlog_is_notified_only_of_expiry_and_misses_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/#", options=DURABLE)
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        [part] = site.router.durable_subscriptions["kept"].parts
        told: list[bytes] = []
        arrived = part.arrived

        def hear(stored: Stored) -> None:
            told.append(stored.run.bodies[0])
            arrived(stored)

        monkeypatch.setattr(part, "arrived", hear)
        sealed(site, "topic/a", b"1")
        expires = b"\x02\0\0\0\x3c"  # Message Expiry Interval
        for body, properties in ((b"2", b""), (b"3", b""), (b"4", expires), (b"5", b""), (b"6", b"")):
            site.router.publish(Publication(SilentOrigin(), Run("topic/b", "device", 1, properties, [body]), ()))
        while site.posted:
            site.posted.popleft()()
        assert told == [b"1", b"4"]
        assert part.expiry.due_ns is not None
        assert bodies_of(site.consumer("topic/#", options=DURABLE)) == ["1", "2", "3", "4", "5", "6"]

    def test_priority_that_was_consumed_is_not_awaited(self) -> None:
        """A message that was read before its feed announced it leaves no entry behind."""
        site = RouterSite(queue=AddressPolicy(durability=Durability(DurabilityMode.MEMORY)))
        header = encode(DescribedValue(Ulong(0x70), [True, Ubyte(9)]))
        consumer = site.consumer("queue/a", credit=0)
        site.send("queue/a", b"\x00\x53\x75\xa0\x01a", properties=header, flags=AMQP | 1)
        consumer.credit = 10
        site.router.publish(
            Publication(SilentOrigin(), Run("queue/a", "d", AMQP | 1, header, [b"\x00\x53\x75\xa0\x01b"]), ())
        )
        assert consumer.joined is not None
        consumer.joined.pump()
        while site.posted:
            site.posted.popleft()()
        site.settle_down()
        queue = site.router.queues["queue/a"]
        assert isinstance(queue.order, QueueOrder)
        assert len(consumer.got) == 2
        assert not queue.order.serves
