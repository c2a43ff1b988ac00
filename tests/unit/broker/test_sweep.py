"""Messages expire without a reader: each one is removed and counted, and a bad clock removes none."""

from __future__ import annotations

import pytest

from bridge.message import Run
from edge.broker.limits import (
    CLOCK_STEP_S_MAX,
    SWEEP_AGAIN_S,
    SWEEP_BYTES_MAX,
    SWEEP_RANGES_MAX,
    SWEEP_READ_BYTES_MAX,
    SWEEP_RUNS_MAX,
    SWEEP_VISITS_MAX,
)
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions
from edge.broker.router.batch import Publication
from edge.broker.store.errors import StoreFull
from tests.support.memory_store import MemoryStore
from tests.support.router_site import RecordingConsumer, RouterSite, SilentOrigin, expiry
from tests.unit.broker.selecting_consumer import SelectingConsumer, attach

HOUR = AddressPolicy(ttl_max_s=3600)


class Reads:
    """Count the reads of a site's store."""

    def __init__(self, site: RouterSite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = site.store.logs.read

        def counted(*arguments: object) -> None:
            self.count += 1
            read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(site.store.logs, "read", counted)


def absent(site: RouterSite, name: str, pattern: str = "topic/#") -> None:
    """Make a durable subscription without a connected client."""
    consumer = site.consumer(pattern, name, options=SubscribeOptions(durable_name=name))
    assert consumer.joined is not None
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)


def fill(
    site: RouterSite, address: str, count: int, *, size: int = 100, together: int = 100, properties: bytes = b""
) -> None:
    for start in range(0, count, together):
        bodies = [b"%0*d" % (size, number) for number in range(start, min(start + together, count))]
        site.router.publish(Publication(SilentOrigin(), Run(address, "device", 1, properties, bodies), ()))
    site.settle_down()


def tick(site: RouterSite) -> None:
    """Run one tick and its effects, up to the next tick."""
    site.now += 0.25
    site.router.tick()
    while site.posted:
        site.posted.popleft()()
        site.router.flush()


def held(site: RouterSite, log: str) -> int:
    """Return the bytes of bodies in a log."""
    return site.store.retention.log_bytes(site.store.logs.open(log))


class TestWithoutConsumer:
    def test_hundred_thousand_messages_expire_within_a_bounded_number_of_ticks(self) -> None:
        site = RouterSite(queue=HOUR)
        fill(site, "queue/a", 100_000)
        assert held(site, "queue queue/a") == 10_000_000
        site.now += 3600
        for _ in range(10_000_000 // SWEEP_BYTES_MAX + 3):
            tick(site)
        assert held(site, "queue queue/a") == 0
        (lost,) = site.lost
        assert (lost.address, lost.first, lost.last) == ("queue/a", 0, 99_999)
        assert (lost.messages, lost.bytes, lost.reason) == (100_000, 10_000_000, "expired")
        assert site.consumer("queue/a").got == []

    def test_tick_examines_a_bounded_number_of_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.delivery.sweep.SWEEP_RUNS_MAX", 10)
        site = RouterSite(queue=HOUR)
        fill(site, "queue/a", 100, size=1, together=1)
        site.now += 3600
        left = []
        for _ in range(12):
            tick(site)
            left.append(held(site, "queue queue/a"))
        assert left[:3] == [180, 160, 140]
        assert left[-1] == 0

    def test_every_cursor_of_a_topic_expires_separately(self) -> None:
        site = RouterSite(topic=HOUR)
        absent(site, "one")
        absent(site, "two", "topic/a")
        uplink = site.consumer("topic/#", "up", options=SubscribeOptions(durable_name="forwarder/hub", all_qos=True))
        fill(site, "topic/a", 10)
        fill(site, "topic/b", 10)
        assert len(uplink.got) == 20
        site.settle_down(wait_s=3600)
        assert [(lost.subscription, lost.address, lost.messages) for lost in site.lost] == [
            ("one", "topic/a", 10),
            ("one", "topic/b", 10),
            ("two", "topic/a", 10),
        ]
        assert held(site, "topic topic/#") == 2000, "a forwarder sends on what it was given"

    def test_message_returned_by_a_departed_consumer_expires(self) -> None:
        site = RouterSite(queue=HOUR)
        consumer = site.consumer("queue/a", credit=3)
        fill(site, "queue/a", 10)
        assert len(consumer.got) == 3
        assert consumer.joined is not None
        site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        site.settle_down(wait_s=3600)
        assert [(lost.first, lost.last) for lost in site.lost] == [(0, 9)]
        assert site.unacknowledged("queue/a") == 0

    def test_delivered_message_does_not_expire(self) -> None:
        site = RouterSite(queue=HOUR)
        consumer = site.consumer("queue/a", credit=3)
        fill(site, "queue/a", 10)
        site.settle_down(wait_s=3600)
        assert [(lost.first, lost.last) for lost in site.lost] == [(3, 9)], "with no credit they wait like any other"
        consumer.answer(DeliveryOutcome.ACCEPTED, 3)
        assert site.unacknowledged("queue/a") == 0

    def test_queue_with_selectors_expires(self) -> None:
        site = RouterSite(queue=HOUR)
        attach(site, SelectingConsumer("red"))
        fill(site, "queue/a", 10)
        assert site.unacknowledged("queue/a") == 10
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/a") == 0
        assert [(lost.first, lost.last) for lost in site.lost] == [(0, 9)]

    def test_messages_expire_after_a_restart(self) -> None:
        site = RouterSite(queue=AddressPolicy(ttl_max_s=3600, expiry="deadletter/late"))
        fill(site, "queue/a", 30, together=10)
        site.boot()
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/a") == 0
        late = site.consumer("deadletter/late")
        assert len(late.got) == 30
        assert site.dead_letters == [("expired", 0, 29)]

    def test_message_may_be_deleted_meanwhile(self) -> None:
        site = RouterSite(topic=HOUR)
        absent(site, "one")
        fill(site, "topic/a", 10)
        site.now += 3600
        site.router.tick()
        site.router.subscriptions.forget("one")
        site.settle_down()
        assert site.lost == []
        assert held(site, "topic topic/#") == 0


class TestOwnTimes:
    def test_message_behind_a_longer_lived_one_expires_out_of_order(self) -> None:
        site = RouterSite()
        site.send("queue/a", b"first")
        site.send("queue/a", b"1", b"2", properties=expiry(60))
        site.send("queue/a", b"between", properties=expiry(90))
        site.send("queue/a", b"3", properties=expiry(60))
        site.settle_down(wait_s=61)
        assert [(lost.first, lost.last) for lost in site.lost] == [(1, 2), (4, 4)]
        site.settle_down(wait_s=30)
        assert [(lost.first, lost.last) for lost in site.lost] == [(1, 2), (4, 4), (3, 3)]
        consumer = site.consumer("queue/a")
        assert consumer.got == [("first", 0)]
        consumer.answer(DeliveryOutcome.ACCEPTED)
        assert site.unacknowledged("queue/a") == 0

    def test_message_behind_many_longer_lived_ones_waits(self) -> None:
        site = RouterSite()
        fill(site, "queue/a", SWEEP_READ_BYTES_MAX // 100 + 100)
        site.send("queue/a", b"waits", properties=expiry(60))
        site.settle_down(wait_s=61)
        assert site.lost == []
        site.router.reconfigure(site.router.addresses.table, {"queue/#": HOUR})
        site.settle_down(wait_s=SWEEP_AGAIN_S)
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/a") == 0

    def test_ranges_out_of_order_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.delivery.expiry.SWEEP_RANGES_MAX", 3)
        site = RouterSite()
        for number in range(10):
            site.send("queue/a", b"%d" % number, properties=expiry(60) if number % 2 else b"")
        site.settle_down(wait_s=61)
        assert len(site.lost) == 3
        consumer = site.consumer("queue/a")
        assert [text for text, _ in consumer.got] == ["0", "2", "4", "6", "8"]

    def test_nothing_is_read_where_nothing_expires(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        absent(site, "one")
        reads = Reads(site, monkeypatch)
        for properties in (b"", b"\x01\x00"):  # payload format indicator
            fill(site, "queue/a", 10, properties=properties)
            fill(site, "topic/a", 10, properties=properties)
        for _ in range(20):
            site.settle_down(wait_s=SWEEP_AGAIN_S)
        assert reads.count == 0

    def test_old_backlog_is_scanned_once_and_not_before_its_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = RouterSite()
        site.good = True
        fill(site, "queue/a", 10)
        site.send("queue/b", b"x", properties=expiry(500))
        site.boot()
        reads = Reads(site, monkeypatch)
        for _ in range(20):
            site.settle_down()
        assert reads.count == 2
        site.settle_down(wait_s=500)
        assert site.unacknowledged("queue/b") == 0


class TestClock:
    def test_unsynchronised_clock_set_forward_expires_nothing(self) -> None:
        site = RouterSite(queue=HOUR)
        steady_s = 0.0
        site.steady_s = lambda: steady_s
        site.boot()
        fill(site, "queue/a", 10)
        site.now += 10 * 365 * 86_400
        site.settle_down()
        assert site.lost == []
        fill(site, "queue/a", 10)
        for _ in range(15):
            steady_s += 600
            site.settle_down(wait_s=600)
        assert [(lost.first, lost.last) for lost in site.lost] == [(10, 19)], "those that came after it was set"

    def test_clock_set_while_the_gateway_was_down_expires_nothing(self) -> None:
        site = RouterSite(queue=HOUR)
        site.steady_s = lambda: 0.0
        site.boot()
        site.settle_down()
        fill(site, "queue/a", 10)
        booted_at_s = site.now = site.now + 100
        site.steady_s = lambda: site.now - booted_at_s
        site.boot()
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/a") == 10, "how long the machine was off nobody knows"
        fill(site, "queue/b", 10)
        site.boot()
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/b") == 0
        assert site.unacknowledged("queue/a") == 10
        consumer = site.consumer("queue/a")
        assert len(consumer.got) == 10, "nothing is given up by a clock that was set"

    def test_clock_state_is_on_disk_with_the_first_message(self) -> None:
        """Messages age although the first process ends before its first tick [MQTT-3.3.2-6]."""
        site = RouterSite(queue=HOUR)
        booted_at_s = site.now - 5_000
        site.steady_s = lambda: site.now - booted_at_s
        site.store = MemoryStore(post=site.posted.append, clock=lambda: site.now)
        site.boot()
        site.router.publish(Publication(SilentOrigin(), Run("queue/a", "device", 1, b"", [b"x"]), ()))
        site.router.flush()
        site.posted.popleft()()
        site.now += 10
        site.boot()
        site.settle_down(wait_s=3600)
        assert [(lost.first, lost.last) for lost in site.lost] == [(0, 0)]

    def test_synchronised_clock_judges_stamps_of_synchronised_clocks(self) -> None:
        site = RouterSite(queue=HOUR)
        fill(site, "queue/a", 10)
        site.good = True
        fill(site, "queue/a", 10)
        site.settle_down(wait_s=3600)
        assert [(lost.first, lost.last) for lost in site.lost] == [(10, 19)]
        site.good = False
        fill(site, "queue/b", 10)
        site.good = True
        site.settle_down(wait_s=3600)
        assert site.unacknowledged("queue/b") == 10

    def test_clock_set_back_only_delays_expiry(self) -> None:
        site = RouterSite(queue=HOUR)
        site.good = True
        site.now += 10 * 365 * 86_400
        fill(site, "queue/a", 10)
        site.settle_down()
        site.now -= 9 * 365 * 86_400
        site.settle_down()
        fill(site, "queue/b", 10)
        site.settle_down(wait_s=3600 + SWEEP_AGAIN_S)
        assert site.unacknowledged("queue/b") == 0
        assert site.unacknowledged("queue/a") == 10


class TestRoom:
    def test_expiry_address_gets_each_message_once(self) -> None:
        site = RouterSite(queue=AddressPolicy(ttl_max_s=60, expiry="deadletter/late"))
        fill(site, "queue/a", 1000)
        site.settle_down(wait_s=60)
        late = site.consumer("deadletter/late", credit=2000)
        assert sorted(int(text) for text, _ in late.got) == list(range(1000))
        assert ("x-opt-waypost-dead-reason", "expired") in decode_run(late.runs[0].properties).user_property
        assert site.dead_letters == [("expired", 0, 999)]
        assert site.lost == []

    def test_full_expiry_address_is_retried_one_piece_a_tick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        late = AddressPolicy(quota_bytes=500)
        site = RouterSite(queue=AddressPolicy(ttl_max_s=60, expiry="deadletter/late"), deadletter=late)
        fill(site, "queue/a", 20)
        site.settle_down(wait_s=60)
        reads = Reads(site, monkeypatch)
        for _ in range(10):
            tick(site)
        assert reads.count <= 2 * 10
        assert site.unacknowledged("queue/a") == 20 - 5
        for _ in range(4):
            consumer = site.consumer("deadletter/late")
            assert consumer.last is not None
            assert consumer.joined is not None
            consumer.last[0].settle(consumer, 0, 100, DeliveryOutcome.ACCEPTED)
            site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
            for _ in range(4):
                site.settle_down(wait_s=1)
        assert site.unacknowledged("queue/a") == 0
        assert sum(last - first + 1 for _, first, last in site.dead_letters) == 20

    def test_failing_store_is_not_swept(self) -> None:
        site = RouterSite(queue=HOUR)
        fill(site, "queue/a", 10)
        site.store.failure = StoreFull("no space left")
        site.send("queue/b", b"refused")
        site.settle_down(wait_s=3600)
        assert site.store.ledger.entries(0, 10) == []
        site.store.failure = None
        site.settle_down(wait_s=1)
        assert site.unacknowledged("queue/a") == 0
        (lost,) = site.lost
        assert lost.messages == 10

    def test_expired_messages_are_removed_before_a_refusal(self) -> None:
        site = RouterSite(queue=AddressPolicy(ttl_max_s=60, quota_bytes=1000, when_full=WhenFull.REJECT))
        absent_queues = 5
        for number in range(absent_queues):
            fill(site, f"queue/{number}", 2)
        site.now += 60
        site.send("queue/last", b"x" * 100)
        assert "queue/last" in site.router.queues
        site.settle_down()
        site.send("queue/last", b"x" * 1000)
        assert site.unacknowledged("queue/last") == 1
        assert {lost.reason for lost in site.lost} == {"expired"}


def test_many_subscriptions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.broker.delivery.sweep.SWEEP_VISITS_MAX", 3)
    site = RouterSite(queue=HOUR)
    for number in range(20):
        fill(site, f"queue/{number}", 1)
    site.now += 3600
    for _ in range(40):
        tick(site)
    assert sum(lost.messages for lost in site.lost) == 20


def test_consumer_without_credit_is_swept_in_memory() -> None:
    site = RouterSite(queue=HOUR)
    consumer = RecordingConsumer(credit=0)
    site.router.subscriptions.subscribe(consumer, "queue/a", SubscribeOptions()).pump()
    fill(site, "queue/a", 5)
    site.settle_down(wait_s=3600)
    assert site.unacknowledged("queue/a") == 0


def test_limits_are_named() -> None:
    assert 0 < SWEEP_READ_BYTES_MAX <= SWEEP_BYTES_MAX
    assert min(SWEEP_RUNS_MAX, SWEEP_VISITS_MAX, SWEEP_RANGES_MAX, CLOCK_STEP_S_MAX) > 0
