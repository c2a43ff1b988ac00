"""A durable AMQP subscription ends when it is unused for long, and the ledger lists its messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.delivery.dead_letters import LossReason
from edge.broker.delivery.durable import Declaration
from edge.broker.limits import (
    RUNNING_TIME_KEPT_S,
    SUBSCRIPTION_ENDED_AFTER_START_S,
    SUBSCRIPTION_LEFT_KEPT_S,
    Limits,
)
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions
from edge.broker.retention.names import NameKind
from edge.broker.router.durable_subscriptions import KIND
from edge.broker.router.router import Router
from edge.broker.router.running_time import RunningTime
from edge.broker.store.errors import StoreFull
from tests.contract.store.rig import sqlite_rig
from tests.support.router_site import NS_PER_S, RecordingConsumer, RouterSite

UNUSED_S = 10_000
NAME = "amqp/c/alarms"
OPTIONS = SubscribeOptions(durable_name=NAME, all_qos=True, selector="")


class Site(RouterSite):
    """Durable subscriptions end after `UNUSED_S` here; `set_s` moves UTC."""

    def __init__(self, **policies: AddressPolicy) -> None:
        self.set_s = 0.0
        super().__init__(**policies)

    def boot(self) -> None:
        self.store.commits.listeners.clear()  # drop the listeners of the process before
        self.router = Router(
            self.store,
            self.table,
            clock_ns=lambda: int((self.now + self.set_s) * NS_PER_S),
            clock_good=lambda: self.good,
            flush_soon=lambda: None,
            policies=self.policies,
            monotonic_s=lambda: self.now,
            limits=Limits(subscription_unused_s=UNUSED_S),
        )
        self.router.tick()

    def join(self, options: SubscribeOptions = OPTIONS) -> RecordingConsumer:
        return self.consumer("topic/a", options=options)

    def leave(self, consumer: RecordingConsumer) -> None:
        assert consumer.joined is not None
        self.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        self.settle_down()

    def wait(self, wait_s: float) -> None:
        """Let time pass, in the steps of a gateway."""
        self.settle_down(wait_s=wait_s)
        for _ in range(4):
            self.settle_down(wait_s=2.0)

    @property
    def there(self) -> bool:
        return NAME in self.router.durable_subscriptions

    @property
    def on_disk(self) -> Declaration | None:
        return self.on_disk_of(NAME)

    def on_disk_of(self, name: str) -> Declaration | None:
        kept = dict(self.store.state.items(KIND)).get(name)
        return None if kept is None else msgspec.msgpack.decode(kept, type=Declaration)

    def given_up(self) -> list[tuple[str, int]]:
        return [(entry.reason, entry.messages) for entry in self.lost]


def left(site: Site, *bodies: bytes, options: SubscribeOptions = OPTIONS) -> None:
    """Leave a subscription without a client, with messages in it."""
    site.leave(site.join(options))
    if bodies:
        site.send("topic/a", *bodies)


class TestExpiry:
    def test_subscription_ends_when_unused_for_long(self) -> None:
        site = Site()
        left(site, b"1", b"2")
        site.wait(UNUSED_S - 100)
        assert site.there
        assert site.given_up() == []
        site.wait(100)
        assert not site.there
        assert site.on_disk is None
        assert site.given_up() == [(LossReason.UNUSED.value, 2)]
        assert site.router.names.count(NameKind.SUBSCRIPTION) == 0
        assert site.store.cursor_records() == []

    def test_empty_subscription_ends(self) -> None:
        site = Site()
        left(site)
        site.wait(UNUSED_S)
        assert not site.there
        assert site.given_up() == []

    def test_messages_for_others_and_delivered_ones_are_no_loss(self) -> None:
        site = Site()
        consumer = site.join()
        site.send("topic/a", b"had")
        consumer.answer(DeliveryOutcome.ACCEPTED)
        site.leave(consumer)
        site.send("topic/b", b"another's")
        site.wait(UNUSED_S)
        assert not site.there
        assert site.given_up() == []

    def test_backlog_of_any_length_is_dropped(self) -> None:
        site = Site()
        left(site)
        for _ in range(30):
            site.send("topic/a", *[b"x" * 3000] * 20)
        site.wait(UNUSED_S)
        for _ in range(20):
            site.settle_down(wait_s=0.25)
        assert not site.there
        assert sum(messages for _, messages in site.given_up()) == 600

    def test_time_counts_from_the_last_detach(self) -> None:
        site = Site()
        for _ in range(5):
            left(site)
            site.wait(UNUSED_S * 0.7)
        assert site.there
        site.wait(UNUSED_S * 0.3)
        assert not site.there

    def test_attached_consumer_keeps_it(self) -> None:
        site = Site()
        site.join()
        site.wait(3 * UNUSED_S)
        assert site.there

    def test_dead_letter_address_gets_its_backlog(self) -> None:
        site = Site(topic=AddressPolicy(deadletter="deadletter/dead"))
        left(site, b"1", b"2")
        site.wait(UNUSED_S)
        assert not site.there
        assert site.dead_letters == [(LossReason.UNUSED.value, 0, 1)]
        assert [name for name, _ in site.consumer("deadletter/dead").got] == ["1", "2"]

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("mqtt/c/topic/a", SubscribeOptions(durable_name="mqtt/c/topic/a")),
            ("share/g/topic/a", SubscribeOptions(durable_name="share/g/topic/a", shared=True)),
            ("forwarder/hub", SubscribeOptions(durable_name="forwarder/hub", all_qos=True)),
        ],
    )
    def test_subscriptions_of_sessions_and_configuration_remain(self, name: str, options: SubscribeOptions) -> None:
        site = Site()
        left(site, b"1", options=options)
        site.wait(2 * UNUSED_S)
        site.boot()
        site.wait(2 * UNUSED_S)
        assert name in site.router.durable_subscriptions
        kept = site.on_disk_of(name)
        assert kept is not None
        assert kept.left_at is None

    def test_configured_subscription_remains_while_it_is_configured(self) -> None:
        site = Site()
        site.policies = {"topic/a::mine": AddressPolicy(consumers_max=2)}
        site.boot()
        left(site, b"1", options=SubscribeOptions(durable_name="topic/a::mine", all_qos=True, shared=True))
        site.wait(2 * UNUSED_S)
        assert "topic/a::mine" in site.router.durable_subscriptions
        site.router.reconfigure(site.table, {})
        site.wait(1)
        site.wait(UNUSED_S * 0.9)
        assert "topic/a::mine" in site.router.durable_subscriptions
        site.wait(UNUSED_S * 0.1)
        assert "topic/a::mine" not in site.router.durable_subscriptions
        assert site.given_up() == [(LossReason.UNUSED.value, 1)]


class TestTimeout:
    """The client may set the timeout of its subscription (AMQP 1.0 section 3.5.3)."""

    def test_client_may_request_a_shorter_timeout(self) -> None:
        site = Site()
        left(site, b"1", options=msgspec.structs.replace(OPTIONS, timeout_s=60))
        site.wait(40)
        assert site.there
        site.wait(20)
        assert not site.there
        assert site.given_up() == [(LossReason.UNUSED.value, 1)]

    def test_client_may_not_request_a_longer_timeout(self) -> None:
        site = Site()
        left(site, options=msgspec.structs.replace(OPTIONS, timeout_s=2**32 - 1))
        site.wait(UNUSED_S)
        assert not site.there

    def test_last_request_counts_and_is_stored(self) -> None:
        site = Site()
        left(site, options=msgspec.structs.replace(OPTIONS, timeout_s=60))
        left(site, options=msgspec.structs.replace(OPTIONS, timeout_s=3_000))
        site.boot()
        site.wait(2_000)
        assert site.there
        site.wait(1_000)
        assert not site.there


class TestReturningConsumer:
    def test_consumer_in_the_last_second_keeps_the_backlog(self) -> None:
        site = Site()
        left(site, b"1")
        site.wait(UNUSED_S - 10)
        assert [name for name, _ in site.join().got] == ["1"]
        site.wait(2 * UNUSED_S)
        assert site.there
        assert site.given_up() == []

    def test_consumer_during_the_drop_gets_the_rest(self) -> None:
        """Messages in the ledger are gone; the others are delivered."""
        site = Site()
        left(site)
        for _ in range(30):
            site.send("topic/a", *[b"x" * 10_000] * 20)
        site.now += UNUSED_S
        while not site.store.ledger.entries(0, 1):
            site.router.tick()
            while site.posted:
                site.posted.popleft()()
        assert site.there
        consumer = site.join()
        assert 0 < len(consumer.got) < 600
        assert len(consumer.got) + sum(messages for _, messages in site.given_up()) == 600
        site.wait(2 * UNUSED_S)
        assert site.there, "somebody holds it"
        assert len(consumer.got) + sum(messages for _, messages in site.given_up()) == 600

    def test_consumer_after_the_end_starts_a_new_subscription(self) -> None:
        site = Site()
        left(site, b"old")
        site.wait(UNUSED_S)
        consumer = site.join()
        site.send("topic/a", b"new")
        assert [name for name, _ in consumer.got] == ["new"]


class TestRestart:
    def test_time_continues_over_a_restart(self) -> None:
        site = Site()
        left(site, b"1")
        site.wait(RUNNING_TIME_KEPT_S)
        site.wait(RUNNING_TIME_KEPT_S)
        site.boot()
        site.wait(UNUSED_S - 2 * RUNNING_TIME_KEPT_S - 100)
        assert site.there
        site.wait(RUNNING_TIME_KEPT_S + 100)
        assert not site.there, "no more is lost than what was not written of the running time"
        assert site.given_up() == [(LossReason.UNUSED.value, 1)]

    def test_consumer_has_time_to_return_after_a_start(self) -> None:
        site = Site()
        left(site, b"1")
        site.wait(UNUSED_S - 20)
        site.boot()
        site.wait(SUBSCRIPTION_ENDED_AFTER_START_S - 20)
        assert [name for name, _ in site.join().got] == ["1"]

    def test_attached_subscription_counts_from_the_start(self) -> None:
        site = Site()
        left(site)
        site.wait(UNUSED_S * 0.9)
        site.join()
        for _ in range(5):
            site.wait(UNUSED_S / 4)
        site.boot()
        site.wait(UNUSED_S * 0.9)
        assert site.there
        site.wait(UNUSED_S * 0.1)
        assert not site.there

    def test_subscription_of_an_older_store_counts_from_the_start(self) -> None:
        site = Site()
        left(site)
        site.wait(UNUSED_S / 2)
        older = {"name": NAME, "pattern": "topic/a", "all_qos": True, "not_from": None, "selector": "", "user": ""}
        site.store.state.put(KIND, NAME, msgspec.msgpack.encode(older))
        site.settle_down()
        site.boot()
        site.wait(UNUSED_S * 0.9)
        assert site.there
        site.wait(UNUSED_S * 0.1)
        assert not site.there

    def test_time_of_detaching_is_written_once_and_late(self) -> None:
        """A client that takes each message over a new link causes no commit for the time of leaving."""
        site = Site()
        written: list[str] = []
        put = site.store.state.put

        def watched(kind: str, key: str, value: bytes) -> object:
            written.append(kind)
            return put(kind, key, value)

        site.store.state.put = watched  # type: ignore[method-assign, assignment]
        for _ in range(10):
            left(site)
            site.wait(SUBSCRIPTION_LEFT_KEPT_S / 2)
        assert written.count(KIND) == 1, "when it was made"
        site.wait(SUBSCRIPTION_LEFT_KEPT_S)
        site.wait(SUBSCRIPTION_LEFT_KEPT_S)
        assert written.count(KIND) == 2
        assert site.on_disk is not None
        assert site.on_disk.left_at is not None
        site.join()
        assert written.count(KIND) == 3
        assert site.on_disk.left_at is None

    def test_running_time_continues_after_a_restart(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        running = RunningTime(rig.store.state)
        running.tick(5.0, counts=True)
        running.tick(5.0 + RUNNING_TIME_KEPT_S, counts=True)
        rig.store.close()
        again = RunningTime(sqlite_rig(tmp_path).store.state)
        assert again.now == RUNNING_TIME_KEPT_S
        again.tick(1.0, counts=True)
        again.tick(0.5, counts=True)
        assert again.now == RUNNING_TIME_KEPT_S, "it never goes back"


@pytest.mark.parametrize("jump_s", [-50 * 365 * 86_400.0, 174 * 365 * 86_400.0])
def test_clock_step_neither_ends_nor_keeps_a_subscription(jump_s: float) -> None:
    site = Site()
    site.now = 1_600_000_000.0
    site.boot()
    left(site, b"1")
    site.wait(UNUSED_S / 4)
    site.set_s = jump_s
    site.wait(UNUSED_S / 4)
    site.boot()
    site.set_s = 0.0
    site.wait(UNUSED_S / 4)
    assert site.there
    site.wait(UNUSED_S)
    assert not site.there
    assert site.given_up() == [(LossReason.UNUSED.value, 1)]


STEPS = st.sampled_from(["join", "leave", "send", "send", "wait", "long", "fail", "mend", "restart", "set", "turn"])


@given(steps=st.lists(STEPS, min_size=5, max_size=40), timeout_s=st.sampled_from([0, 700]))
def test_messages_of_its_lifetime_are_delivered_or_recorded(steps: list[str], timeout_s: int) -> None:
    site = Site()
    options = msgspec.structs.replace(OPTIONS, timeout_s=timeout_s)
    consumer: RecordingConsumer | None = site.join(options)
    sent, got = 0, Counter[str]()

    def take(joined: RecordingConsumer | None) -> None:
        if joined is not None and joined.joined is not None:
            while joined.runs:
                stored = joined.runs.pop(0)
                got.update(body.decode() for body in stored.bodies)

    for step in steps:
        match step:
            case "join" if consumer is None:
                consumer = site.join(options)
            case "leave" if consumer is not None:
                take(consumer)
                settle_all(site, consumer)
                site.leave(consumer)
                consumer = None
            case "send" if site.store.failure is None and site.there:
                site.send("topic/a", b"%d" % sent)
                sent += 1
            case "wait" | "long":
                site.wait(300 if step == "wait" else UNUSED_S)
            case "fail":
                site.store.failure = StoreFull("no space left")
            case "mend":
                site.store.failure = None
            case "restart":
                take(consumer)
                if consumer is not None:
                    settle_all(site, consumer)
                site.store.failure = None
                site.settle_down()
                consumer = None
                site.boot()
            case "set":
                site.set_s = -site.now if site.set_s else 5e9
            case _:
                site.now += 0.25
                site.router.tick()
    site.store.failure = None
    site.settle_down(wait_s=1.0)
    if consumer is None and site.there:
        consumer = site.join(options)
    take(consumer)
    lost = sum(messages for _, messages in site.given_up())
    assert max(got.values(), default=1) == 1
    assert len(got) + lost == sent


def settle_all(site: Site, consumer: RecordingConsumer) -> None:
    """Answer all deliveries of the consumer."""
    if consumer.last is not None:
        subscription, position = consumer.last
        subscription.settle(consumer, 0, position, DeliveryOutcome.ACCEPTED)
        consumer.last = None
        site.settle_down(wait_s=1.0)
