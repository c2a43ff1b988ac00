"""Guarantees of stored addresses: redelivery, dead letters, time to live, and no unreported loss."""

from __future__ import annotations

import pytest

from bridge.amqp_values import Uint, decode, encode
from bridge.message import AMQP, CLOCK_GOOD, Run, Stored
from edge.broker import limits
from edge.broker.delivery import dead_letters as deadletters
from edge.broker.delivery.attempts import Attempts, delay_s
from edge.broker.delivery.dead_letters import LossReason, with_annotations
from edge.broker.limits import RETURNED_WAIT_S
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.message.translation import parse_message, read_header
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import AddressError, DeliveryOutcome, Refusal
from edge.broker.router.router import SubscribeOptions
from edge.broker.store.errors import StoreFull
from tests.support.router_site import NS_PER_S, RecordingConsumer, RouterSite, attempts, expiry


class TestLinkLoss:
    """The message may have killed a consumer that vanished without an answer."""

    @staticmethod
    def lose(site: RouterSite, consumer: RecordingConsumer) -> None:
        consumer.credit = 0
        consumer.answer(DeliveryOutcome.LOST)
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        site.settle_down()

    @pytest.mark.parametrize(
        ("attempts_max", "said", "counts"),
        [(3, None, True), (3, False, False), (3, True, True), (None, None, False), (None, True, True)],
    )
    def test_attempt_counts_if_the_address_is_configured_so(
        self, attempts_max: int | None, said: bool | None, counts: bool
    ) -> None:
        redelivery = Redelivery(attempts_max=attempts_max, count_on_link_loss=said)
        site = RouterSite(queue=AddressPolicy(redelivery=redelivery))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"m")
        self.lose(site, consumer)
        assert site.consumer("queue/a").got == [("m", 1 if counts else 0)]

    def test_poison_message_ends_as_a_dead_letter(self) -> None:
        site = RouterSite(queue=attempts(3))
        site.send("queue/a", b"poison")
        for number in range(3):
            consumer = site.consumer("queue/a", credit=1)
            assert consumer.got == [("poison", number)]
            self.lose(site, consumer)
        assert site.consumer("queue/a").got == []
        assert site.consumer("deadletter/dead").got == [("poison", 0)]
        assert site.lost == []

    def test_silent_consumer_delays_nothing(self) -> None:
        site = RouterSite(queue=attempts(3, delay_s=10))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"1", b"2")
        other = site.consumer("queue/a")
        consumer.credit = 0
        consumer.answer(DeliveryOutcome.UNANSWERED, 2)
        site.settle_down()
        assert other.got == [("1", 0), ("2", 0)]

    def test_message_waits_as_after_any_failed_attempt(self) -> None:
        site = RouterSite(queue=attempts(3, delay_s=10))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"m")
        self.lose(site, consumer)
        other = site.consumer("queue/a")
        assert other.got == []
        site.settle_down(wait_s=10.1)
        assert other.got == [("m", 1)]


class TestRedelivery:
    def test_new_consumer_begins_with_the_oldest_message(self) -> None:
        site = RouterSite()
        first = site.consumer("queue/a")
        site.send("queue/a", *[b"%d" % i for i in range(10)])
        assert first.joined is not None
        assert first.last is not None
        subscription, position = first.last
        subscription.settle(
            first, position + 5, position + 9, DeliveryOutcome.RELEASED
        )  # the queue is reading these again
        site.router.subscriptions.unsubscribe(first, first.joined, forget=False)
        second = site.consumer("queue/a")
        assert [name for name, _ in second.got] == [str(i) for i in range(10)]

    def test_only_failures_count(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"m")
        for outcome in (
            DeliveryOutcome.RELEASED,
            DeliveryOutcome.MODIFIED_FAILED,
            DeliveryOutcome.RELEASED,
            DeliveryOutcome.MODIFIED_FAILED,
        ):
            consumer.answer(outcome)
            site.settle_down()
        assert consumer.got == [("m", 0), ("m", 0), ("m", 1), ("m", 1), ("m", 2)]
        consumer.answer(DeliveryOutcome.ACCEPTED)
        assert site.unacknowledged("queue/a") == 0
        assert site.lost == []

    def test_neighbours_of_a_failed_message_have_their_own_count(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"1", b"2", b"3", b"4")
        assert consumer.last is not None
        subscription, first = consumer.last
        subscription.settle(consumer, first + 1, first + 1, DeliveryOutcome.MODIFIED_FAILED)
        subscription.settle(consumer, first, first + 3, DeliveryOutcome.RELEASED)
        site.settle_down()
        assert sorted(consumer.got[4:]) == [("1", 0), ("2", 1), ("3", 0), ("4", 0)]

    def test_message_is_a_dead_letter_after_the_last_attempt(self) -> None:
        site = RouterSite(queue=attempts(3))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"first")
        consumer.answer(DeliveryOutcome.ACCEPTED)
        site.send("queue/a", b"poison")
        for _ in range(3):
            consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
            site.settle_down()
        assert consumer.got == [("first", 0), ("poison", 0), ("poison", 1), ("poison", 2)]
        dead = site.consumer("deadletter/dead")
        assert dead.got == [("poison", 0)]
        marks = dict(decode_run(dead.runs[0].properties).user_property)
        assert marks == {
            "x-opt-waypost-dead-reason": "delivery attempts exceeded",
            "x-opt-waypost-dead-from": "queue/a",
            "x-opt-waypost-dead-sequence": "1",
        }
        assert site.unacknowledged("queue/a") == 0
        assert site.lost == []

    def test_delay_grows_to_its_maximum(self) -> None:
        redelivery = Redelivery(delay_s=10, delay_multiplier=3, delay_max_s=50)
        assert [delay_s(redelivery, n) for n in (1, 2, 3, 4)] == [10, 30, 50, 50]
        assert delay_s(Redelivery(delay_s=1, delay_multiplier=2), 5000) == float("inf")

    def test_delayed_message_does_not_delay_others(self) -> None:
        site = RouterSite(queue=AddressPolicy(redelivery=Redelivery(delay_s=10, delay_multiplier=2)))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"slow")
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()
        site.send("queue/a", b"next")
        consumer.answer(DeliveryOutcome.ACCEPTED)
        assert consumer.got == [("slow", 0), ("next", 0)]
        assert site.router.queues["queue/a"].backlog == 1
        site.settle_down(wait_s=9.9)
        assert len(consumer.got) == 2
        site.settle_down(wait_s=0.2)
        assert consumer.got[2:] == [("slow", 1)]
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down(wait_s=19.9)
        assert len(consumer.got) == 3
        site.settle_down(wait_s=0.2)
        assert consumer.got[3:] == [("slow", 2)]

    def test_released_message_waits_longer_each_time_and_has_not_failed(self) -> None:
        site = RouterSite(queue=AddressPolicy(redelivery=Redelivery(attempts_max=2, delay_s=10, delay_multiplier=2)))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"m")
        for wait_s in (10, 20, 40):
            consumer.answer(DeliveryOutcome.RELEASED)
            got = len(consumer.got)
            site.settle_down(wait_s=wait_s - 0.1)
            assert len(consumer.got) == got
            site.settle_down(wait_s=0.2)
            assert len(consumer.got) == got + 1
        assert consumer.got == [("m", 0)] * 4
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down(wait_s=80.1)
        assert consumer.got[4:] == [("m", 1)]
        assert site.lost == []

    @pytest.mark.parametrize("outcome", [DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED])
    def test_released_message_goes_first_to_another_consumer(self, outcome: DeliveryOutcome) -> None:
        site = RouterSite()
        first = site.consumer("queue/a", "first")
        site.send("queue/a", b"m")
        second = site.consumer("queue/a", "second", credit=0)
        first.answer(outcome)
        site.settle_down()
        site.send("queue/a", b"n")
        assert [name for name, _ in first.got] == ["m", "n"]
        second.credit = 1
        site.router.queues["queue/a"].pump()
        site.settle_down()
        assert [name for name, _ in second.got] == ["m"]
        second.answer(outcome)
        site.settle_down()
        assert [name for name, _ in first.got] == ["m", "n", "m"], "both have given it back"

    def test_released_message_returns_to_the_same_consumer_after_a_while(self) -> None:
        site = RouterSite()
        first = site.consumer("queue/a", "first")
        site.send("queue/a", b"m")
        site.consumer("queue/a", "second", credit=0)
        first.answer(DeliveryOutcome.RELEASED)
        site.settle_down(wait_s=RETURNED_WAIT_S - 0.1)
        assert len(first.got) == 1
        site.settle_down(wait_s=0.2)
        assert len(first.got) == 2

    def test_released_message_returns_at_once_when_the_other_consumers_leave(self) -> None:
        site = RouterSite()
        first = site.consumer("queue/a", "first")
        site.send("queue/a", b"m")
        second = site.consumer("queue/a", "second", credit=0)
        first.answer(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert len(first.got) == 1
        assert second.joined is not None
        site.router.subscriptions.unsubscribe(second, second.joined, forget=False)
        site.settle_down()
        assert len(first.got) == 2

    def test_undeliverable_here_message_goes_only_to_other_consumers(self) -> None:
        site = RouterSite()
        first = site.consumer("queue/a", "first")
        site.send("queue/a", b"m")
        first.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        assert first.got == [("m", 0)]
        site.send("queue/a", b"n")  # no longer held up by "m", which no consumer here may take
        assert first.got == [("m", 0), ("n", 0)]
        first.answer(DeliveryOutcome.ACCEPTED)
        assert site.router.queues["queue/a"].backlog == 1
        second = site.consumer("queue/a", "second")
        assert second.got == [("m", 1)]
        second.answer(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert len(first.got) == 2
        assert second.got == [("m", 1), ("m", 1)]

    def test_undeliverable_here_message_waits_for_a_consumer_without_credit(self) -> None:
        site = RouterSite()
        first = site.consumer("queue/a", "first")
        site.send("queue/a", b"m")
        second = site.consumer("queue/a", "second", credit=0)
        first.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        site.send("queue/a", b"n")
        assert first.got == [("m", 0), ("n", 0)]
        second.credit = 1
        site.router.queues["queue/a"].pump()
        site.settle_down()
        assert second.got == [("m", 1)]

    def test_undeliverable_here_message_of_a_sole_consumer_is_dropped(self) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/a", options=SubscribeOptions(durable_name="sub"))
        site.send("topic/a", b"m")
        consumer.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        (lost,) = site.lost
        assert (lost.address, lost.subscription, lost.reason) == ("topic/a", "sub", "undeliverable")

    def test_undeliverable_here_message_of_a_sole_consumer_is_dropped_under_any_rule(self) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/#", options=SubscribeOptions(durable_name="sub"))
        site.table = AddressTable(
            [AddressRule("topic/#", AddressType.TOPIC), AddressRule("topic/a", AddressType.TOPIC)]
        )
        site.router.reconfigure(site.table, {})
        site.send("topic/a", b"under a new rule")
        consumer.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        site.send("topic/a", b"after a restart")
        site.boot()
        consumer = RecordingConsumer()
        joined = site.router.durable_subscriptions.join_remainder(consumer, "sub")
        assert joined is not None
        joined.pump()
        site.settle_down()
        consumer.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        (lost,) = site.lost
        assert (lost.subscription, lost.reason, lost.messages) == ("sub", "undeliverable", 2)

    def test_undeliverable_here_message_of_a_shared_subscription_goes_to_another_consumer(self) -> None:
        site = RouterSite()
        shared = SubscribeOptions(durable_name="sub", shared=True)
        first, second = site.consumer("topic/#", "1", options=shared), site.consumer("topic/#", "2", options=shared)
        site.table = AddressTable(
            [AddressRule("topic/#", AddressType.TOPIC), AddressRule("topic/a", AddressType.TOPIC)]
        )
        site.router.reconfigure(site.table, {})
        site.send("topic/a", b"m")
        got, other = (first, second) if first.got else (second, first)
        got.answer(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        assert other.got == [("m", 1)]
        assert not site.lost

    def test_counts_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.delivery.attempts.ATTEMPTS_TRACKED_MAX", 3)
        book = Attempts()
        for position in range(5):
            book.failed(position)
        assert list(book.counts) == [2, 3, 4]
        assert book.failed(4) == 2


class TestDropped:
    def test_rejected_message_without_a_dead_letter_address_is_recorded(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"0", b"1", b"2", b"3")
        assert consumer.last is not None
        subscription, first = consumer.last
        for position in (1, 2):
            subscription.settle(consumer, first + position, first + position, DeliveryOutcome.REJECTED)
            site.settle_down()
        (lost,) = site.lost
        assert (lost.address, lost.reason, lost.first, lost.last, lost.messages) == ("queue/a", "rejected", 1, 2, 2)
        subscription.settle(consumer, first, first, DeliveryOutcome.ACCEPTED)
        subscription.settle(consumer, first + 3, first + 3, DeliveryOutcome.ACCEPTED)
        assert site.unacknowledged("queue/a") == 0
        site.boot()
        site.send("queue/a", b"4")
        again = site.consumer("queue/a")
        again.answer(DeliveryOutcome.REJECTED)
        assert [(lost.first, lost.last) for lost in site.lost] == [(1, 2), (4, 4)]

    def test_rejection_does_not_read_the_backlog(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        for number in range(300):
            site.send("queue/a", b"%0100d" % number)
        consumer = site.consumer("queue/a", credit=300)
        asked, read = [], site.store.logs.read
        monkeypatch.setattr(
            site.store.logs, "read", lambda log, at, size, done: (asked.append(size), read(log, at, size, done))
        )
        assert consumer.last is not None
        subscription, _ = consumer.last
        for position in range(0, 300, 3):
            subscription.settle(consumer, position, position, DeliveryOutcome.REJECTED)
        site.settle_down()
        assert len(site.lost) == 100
        assert asked
        assert max(asked) == limits.GIVEN_UP_READ_BYTES

    def test_full_store_keeps_messages_that_could_not_become_dead_letters(self) -> None:
        site = RouterSite(queue=attempts(1))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"poison")
        site.store.failure = StoreFull("no space left")
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()
        assert site.unacknowledged("queue/a") == 1
        site.store.failure = None
        assert site.unacknowledged("queue/a") == 0
        assert site.consumer("deadletter/dead").got == [("poison", 0)]
        assert site.lost == []
        assert site.dead_letters == [("delivery attempts exceeded", 0, 0)]

    def test_message_rejected_at_a_dead_letter_address_is_recorded(self) -> None:
        site = RouterSite(queue=attempts(1), deadletter=AddressPolicy(deadletter="deadletter/dead"))
        consumer = site.consumer("queue/a")
        site.send("queue/a", b"poison")
        consumer.answer(DeliveryOutcome.REJECTED)
        site.settle_down()
        dead = site.consumer("deadletter/dead")
        dead.answer(DeliveryOutcome.REJECTED)
        (lost,) = site.lost
        assert lost.address == "deadletter/dead"

    def test_partial_rejection_at_a_dead_letter_address_is_recorded_in_part(self) -> None:
        """Consumers of an anycast address answer each message separately."""
        site = RouterSite(queue=AddressPolicy(deadletter="anycast/dead"))
        site.send("queue/1", *(b"\x00\x53\x75\xa0\x01%d" % i for i in range(4)), flags=AMQP | 1)
        reader = site.consumer("queue/1")
        taker = site.consumer("anycast/dead", "taker")
        reader.answer(DeliveryOutcome.REJECTED, 4)
        site.settle_down()
        assert taker.last is not None
        assert len(taker.got) == 4
        subscription, first = taker.last
        taker.credit = 0
        subscription.settle(taker, first + 1, first + 1, DeliveryOutcome.ACCEPTED)
        subscription.settle(taker, first, first, DeliveryOutcome.REJECTED)
        subscription.settle(taker, first + 2, first + 2, DeliveryOutcome.REJECTED)
        subscription.settle(taker, first + 3, first + 3, DeliveryOutcome.ACCEPTED)
        assert site.dead_letters == [("rejected", 1, 1), ("rejected", 3, 3)]
        assert site.unacknowledged("queue/1") == 2
        taker.credit = 10
        assert taker.joined is not None
        taker.joined.pump()
        site.settle_down()
        assert [body[-1] for body, _ in taker.got[4:]] == ["0", "2"]

    def test_dead_letter_keeps_the_sections_of_an_amqp_message(self) -> None:
        header = b"\x00\x53\x70" + encode([True, None, Uint(60_000)])
        body = with_annotations(b"\x00\x53\x75\xa0\x03abc", {"x-opt-mine": "kept"})
        stored = Stored(3, 7, Run("queue/a", "device", AMQP | 1, header, [body]))
        (dead,) = deadletters.dead_letter_runs(stored, "deadletter/dead", LossReason.REJECTED)
        found = parse_message(dead.bodies[0])
        assert found.body == b"abc"
        assert found.annotations == {
            "x-opt-mine": "kept",
            "x-opt-waypost-dead-reason": "rejected",
            "x-opt-waypost-dead-from": "queue/a",
            "x-opt-waypost-dead-sequence": 7,
        }
        assert read_header(dead.properties).durable
        assert read_header(dead.properties).ttl_ms is None
        assert decode(dead.properties, 3)[0] == [True, None]


class TestTimeToLive:
    @pytest.mark.parametrize(
        ("properties", "flags", "policy", "seconds"),
        [
            (b"", 1, AddressPolicy(), None),
            (expiry(5), 1, AddressPolicy(), 5),
            (b"\x00\x53\x70" + encode([True, None, Uint(5000)]), AMQP | 1, AddressPolicy(), 5),
            (b"\x00\x53\x70\xc0\x02\x01\x41", AMQP | 1, AddressPolicy(), None),
            (expiry(5), 1, AddressPolicy(ttl_max_s=2), 2),
            (expiry(5), 1, AddressPolicy(ttl_min_s=9), 9),
            (b"", 1, AddressPolicy(ttl_max_s=2), 2),
            (b"", 1, AddressPolicy(ttl_min_s=9), None),
            (encode_run(Properties(message_expiry_interval_s=5, content_type="x" * 200)), 1, AddressPolicy(), 5),
        ],
    )
    def test_time_to_live_combines_message_and_address(
        self, properties: bytes, flags: int, policy: AddressPolicy, seconds: int | None
    ) -> None:
        run = Run("queue/a", "d", flags, properties, [b""])
        assert ttl_ns(run, policy) == (None if seconds is None else seconds * NS_PER_S)

    @pytest.mark.parametrize("level", [True, False])
    def test_expired_message_goes_to_the_expiry_address(self, level: bool) -> None:
        site = RouterSite(queue=AddressPolicy(expiry="deadletter/late"))
        consumer = site.consumer("queue/a", credit=0) if level else None
        site.send("queue/a", b"late", properties=expiry(5))
        site.send("queue/a", b"later", properties=expiry(60))
        site.settle_down(wait_s=5)
        if consumer is None:
            consumer = site.consumer("queue/a")
        else:
            consumer.credit = 10
            site.router.queues["queue/a"].pump()
            site.settle_down()
        assert consumer.got == [("later", 0)]
        consumer.answer(DeliveryOutcome.ACCEPTED)
        late = site.consumer("deadletter/late")
        assert late.got == [("late", 0)]
        assert decode_run(late.runs[0].properties).message_expiry_interval_s is None
        assert site.unacknowledged("queue/a") == 0
        assert site.lost == []

    def test_expired_message_without_an_expiry_address_is_recorded(self) -> None:
        site = RouterSite(topic=AddressPolicy(ttl_max_s=10))
        consumer = site.consumer("topic/a", options=SubscribeOptions(durable_name="sub"))
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        site.send("topic/a", b"0", b"1")
        site.settle_down(wait_s=11)
        site.send("topic/a", b"2")
        again = site.consumer("topic/a", options=SubscribeOptions(durable_name="sub"))
        assert again.got == [("2", 0)]
        (lost,) = site.lost
        assert (lost.first, lost.last, lost.reason, lost.subscription) == (0, 1, "expired", "sub")

    def test_many_expired_messages_are_moved_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.delivery.dead_lettering.GIVING_UP_MAX", 10)
        monkeypatch.setattr("edge.broker.delivery.log_reader.READ_BYTES_MAX", 100)
        site = RouterSite(queue=AddressPolicy(ttl_max_s=1, expiry="deadletter/late"))
        for i in range(100):
            site.send("queue/a", b"%04d" % i, b"x" * 10)
        site.settle_down(wait_s=2)
        consumer = site.consumer("queue/a")
        for _ in range(40):
            site.settle_down()
        assert consumer.got == []
        assert site.router.queues["deadletter/late"].backlog == 200
        assert site.unacknowledged("queue/a") == 0

    def test_forwarder_sends_expired_messages(self) -> None:
        site = RouterSite()
        options = SubscribeOptions(durable_name="forwarder/hub/a", all_qos=True)
        uplink = site.consumer("topic/#", options=options, credit=0)
        site.send("topic/a", b"old", properties=expiry(1))
        uplink.credit = 10
        site.now += 60
        assert uplink.joined is not None
        uplink.joined.pump()
        site.settle_down()
        assert uplink.got == [("old", 0)]

    def test_clock_that_was_set_expires_nothing(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a", credit=0)
        site.send("queue/a", b"kept", properties=expiry(5))
        site.good = True
        site.now += 1_700_000_000
        consumer.credit = 2
        site.router.queues["queue/a"].pump()
        assert consumer.got == [("kept", 0)]
        assert not consumer.runs[0].flags & CLOCK_GOOD

    def test_live_subscriber_gets_no_expired_message(self) -> None:
        site = RouterSite()
        consumer = site.consumer("topic/a", credit=0)
        site.send("topic/a", b"stale", properties=expiry(5))
        site.send("topic/a", b"fresh", properties=expiry(50))
        site.now += 6
        consumer.credit = 10
        assert consumer.joined is not None
        consumer.joined.pump()
        assert consumer.got == [("fresh", 0)]


class TestConsumers:
    def test_consumers_are_limited(self) -> None:
        site = RouterSite(queue=AddressPolicy(consumers_max=2), anycast=AddressPolicy(consumers_max=1))
        first = site.consumer("queue/a", "first")
        site.consumer("queue/a", "second")
        with pytest.raises(AddressError) as refused:
            site.consumer("queue/a", "third")
        assert refused.value.refusal is Refusal.FULL
        assert first.joined is not None
        site.router.subscriptions.unsubscribe(first, first.joined, forget=False)
        site.consumer("queue/a", "third")
        site.consumer("anycast/a")
        with pytest.raises(AddressError):
            site.consumer("anycast/a")

    def test_consumers_of_a_named_subscription_are_limited(self) -> None:
        site = RouterSite()
        site.router.reconfigure(site.table, {"topic/a::sub": AddressPolicy(consumers_max=1)})
        options = SubscribeOptions(durable_name="topic/a::sub", shared=True)
        site.consumer("topic/a", "first", options=options)
        with pytest.raises(AddressError):
            site.consumer("topic/a", "second", options=options)

    def test_new_policy_applies_to_existing_consumers(self) -> None:
        site = RouterSite()
        consumer = site.consumer("queue/a")
        site.router.reconfigure(site.table, {"queue/#": attempts(1)})
        site.send("queue/a", b"poison")
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()
        assert site.router.queues["deadletter/dead"].backlog == 1


def test_limits_are_named() -> None:
    assert limits.GIVING_UP_MAX > 0
