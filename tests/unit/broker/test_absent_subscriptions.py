"""Durable subscriptions of absent clients are rows of the store, and lose no message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge.message import Run, Stored
from edge.broker.limits import SUBSCRIPTION_LINGER_S, SUBSCRIPTIONS_PASSED_S
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.model.topics import matches
from edge.broker.router import durable_subscriptions
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from edge.broker.store.limits import StoreLimits
from tests.contract.store.rig import sqlite_rig
from tests.support.router_site import RecordingConsumer, RouterSite, SilentOrigin


class Consumer(RecordingConsumer):
    """Consumer that remembers its unanswered deliveries."""

    def __init__(self, name: str = "c", credit: int = 1000) -> None:
        super().__init__(name, credit)
        self.deliveries: list[tuple[Stored, Subscription]] = []

    def take(self, subscription: Subscription, stored: Stored) -> None:
        super().take(subscription, stored)
        self.deliveries.append((stored, subscription))


class Site(RouterSite):
    consumers = Consumer


def options(name: str, **more: object) -> SubscribeOptions:
    return SubscribeOptions(durable_name=name, **more)  # type: ignore[arg-type]


def away(site: Site, consumer: Consumer) -> None:
    """Detach the consumer until its subscription is closed."""
    assert consumer.joined is not None
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
    for _ in range(4):
        site.settle_down(wait_s=SUBSCRIPTION_LINGER_S)


def opened(site: Site) -> set[str]:
    return set(site.router.durable_subscriptions.opened)


def position(site: Site, name: str) -> int:
    """Return the position of its only cursor on disk."""
    [record] = [record for record in site.store.cursor_records() if record.name == name]
    return record.position


class TestAbsentSubscription:
    def test_each_new_message_is_pending_and_delivered_once(self) -> None:
        site = Site()
        consumer = site.consumer("topic/+", options=options("mqtt/c/topic/+"))
        site.send("topic/a", b"1")
        consumer.answer(DeliveryOutcome.ACCEPTED)
        away(site, consumer)
        assert opened(site) == set()
        site.send("topic/a", b"2")
        site.send("topic/b/c", b"not this")
        site.send("topic/b", b"3")
        assert opened(site) == set()
        back = site.consumer("topic/+", options=options("mqtt/c/topic/+"))
        assert [name for name, _ in back.got] == ["2", "3"]
        assert opened(site) == {"mqtt/c/topic/+"}

    def test_message_committed_while_its_consumer_detaches_is_not_skipped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client may disconnect right behind its CONNECT, which is answered before messages are delivered."""
        monkeypatch.setattr(durable_subscriptions, "SUBSCRIPTIONS_OPEN_MAX", 0)
        site = Site()
        consumer = site.consumer("topic/a", options=options("mqtt/c/topic/a"))

        class Leaving:
            def prepare(self) -> None:
                """Write nothing."""

            def committed(self, *, kept: bool) -> None:
                assert consumer.joined is not None
                site.router.subscriptions.detach(consumer, consumer.joined, site.router.now_ns())

        site.router.participate(Leaving())
        site.send("topic/a", b"1")
        assert opened(site) == set()
        site.consumer("topic/b", "other", options=options("mqtt/other/topic/b"))
        site.send("topic/b", b"2")
        for _ in range(8):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert site.consumer("topic/a", options=options("mqtt/c/topic/a")).got == [("1", 0)]

    def test_messages_that_do_not_match_are_skipped_and_their_space_is_freed(self) -> None:
        site = Site()
        site.router.tick()
        forwarder = site.consumer("topic/#", "up", options=options("forwarder/hub", all_qos=True))
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        for i in range(10):
            site.send("topic/b", b"%d" % i)
            forwarder.answer(DeliveryOutcome.ACCEPTED)
        for _ in range(8):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert opened(site) == {"forwarder/hub"}
        assert position(site, "mqtt/c/topic/a") == 10
        [log] = [log for log in site.store.info().logs if log.name.startswith("topic")]
        assert (log.first, log.next) == (10, 10), "nobody wants it"
        site.send("topic/a", b"mine")
        forwarder.answer(DeliveryOutcome.ACCEPTED)
        site.send("topic/b", b"not mine")
        forwarder.answer(DeliveryOutcome.ACCEPTED)
        for _ in range(8):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert position(site, "mqtt/c/topic/a") == 10, "what it is owed stays"
        assert site.consumer("topic/a", options=options("mqtt/c/topic/a")).got == [("mine", 0)]

    def test_messages_expire_without_a_consumer(self) -> None:
        site = Site()
        site.good = True
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        site.send("topic/a", b"soon", properties=encode_run(Properties(message_expiry_interval_s=30)))
        assert opened(site) == set()
        for _ in range(20):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert [(entry.subscription, entry.reason) for entry in site.lost] == [("mqtt/c/topic/a", "expired")]
        assert opened(site) == set()
        assert site.consumer("topic/a", options=options("mqtt/c/topic/a")).got == []

    def test_time_to_live_of_the_address_counts_from_its_configuration(self) -> None:
        site = Site()
        site.good = True
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        site.send("topic/a", b"late")
        site.router.reconfigure(site.table, {"topic/#": AddressPolicy(ttl_max_s=20)})
        for _ in range(20):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert [entry.reason for entry in site.lost] == ["expired"]

    def test_eviction_is_recorded_for_the_subscriptions_it_affects(self) -> None:
        site = Site()
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        away(site, site.consumer("topic/b", options=options("mqtt/c/topic/b")))
        site.send("topic/a", b"x" * 100)
        [log] = [log.log for log in site.store.info().logs if log.name.startswith("topic")]
        site.store.retention.evict(log, 100)
        assert [(entry.subscription, entry.reason) for entry in site.lost] == [("mqtt/c/topic/a", "evicted")]
        assert opened(site) == set()

    def test_subscription_with_a_cursor_in_one_log_receives_what_it_selects(self) -> None:
        site = Site()
        site.consumer("topic/b", "up", options=options("forwarder/hub", all_qos=True))
        consumer = site.consumer("+/a", options=options("mqtt/c/+/a"))
        site.send("other/a", b"1", b"2")
        [(stored, subscription)] = consumer.deliveries
        subscription.settle(consumer, stored.position + 1, stored.position + 1, DeliveryOutcome.ACCEPTED)
        away(site, consumer)
        assert opened(site) == {"forwarder/hub", "mqtt/c/+/a"}, "something of it is acknowledged out of order"
        [log] = [log.log for log in site.store.info().logs if log.name == "topic topic/#"]
        site.router.publish(Publication(SilentOrigin(), Run("topic/b", "device", 1, b"", [b"x" * 100]), ()))
        for _ in range(2):  # the second commit evicts what the first one stored, before a cursor passes it
            site.router.flush()
            while site.posted:
                site.posted.popleft()()
            site.store.retention.evict(log, 100)
        assert {(entry.subscription, entry.address) for entry in site.lost} == {("forwarder/hub", "topic/b")}

    def test_deletion_does_not_open_it(self) -> None:
        site = Site()
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        site.send("topic/a", b"1")
        site.router.subscriptions.forget("mqtt/c/topic/a")
        site.settle_down(wait_s=1.0)
        assert len(site.router.durable_subscriptions) == 0
        assert not [record for record in site.store.cursor_records() if record.name.startswith("mqtt")]
        assert not list(site.store.state.items("subscription"))
        assert site.store.totals().messages == 0
        assert site.consumer("topic/a", options=options("mqtt/c/topic/a")).got == []

    def test_address_that_becomes_a_topic_is_delivered_to_it(self) -> None:
        site = Site()
        away(site, site.consumer("topic/a/#", options=options("mqtt/c/topic/a/#")))
        site.send("topic/a/1", b"1")
        rules = [AddressRule("topic/#", AddressType.TOPIC), AddressRule("topic/a/+", AddressType.TOPIC)]
        site.router.reconfigure(AddressTable(rules))
        site.send("topic/a/1", b"2")
        for _ in range(4):
            site.settle_down(wait_s=SUBSCRIPTION_LINGER_S)
        assert opened(site) == set()
        site.send("topic/a/1", b"3")
        back = site.consumer("topic/a/#", options=options("mqtt/c/topic/a/#"))
        assert sorted(name for name, _ in back.got) == ["1", "2", "3"]

    def test_subscriptions_without_a_consumer_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(durable_subscriptions, "SUBSCRIPTIONS_OPEN_MAX", 5)
        monkeypatch.setattr(durable_subscriptions, "SUBSCRIPTIONS_CLOSED_MAX", 3)
        site = Site()
        consumers = [site.consumer(f"topic/{i}", options=options(f"mqtt/c/topic/{i}")) for i in range(10)]
        for consumer in consumers:
            assert consumer.joined is not None
            site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        left = []
        for _ in range(4):
            site.router.tick()
            left.append(len(opened(site)))
        assert left == [7, 4, 4, 4], "so many may be for a while"
        for _ in range(3):
            site.settle_down(wait_s=SUBSCRIPTION_LINGER_S)
        assert opened(site) == set()

    def test_missed_wake_delays_and_loses_nothing(self) -> None:
        site = Site()
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        site.router.publish(Publication(SilentOrigin(), Run("topic/a", "device", 1, b"", [b"1"]), ()))
        site.router.flush()
        listeners, site.store.commits.listeners[:] = list(site.store.commits.listeners), []
        while site.posted:
            site.posted.popleft()()
        site.store.commits.listeners[:] = listeners
        for _ in range(8):
            site.settle_down(wait_s=SUBSCRIPTIONS_PASSED_S)
        assert site.consumer("topic/a", options=options("mqtt/c/topic/a")).got == [("1", 0)]

    def test_amqp_subscription_keeps_its_options(self) -> None:
        site = Site()
        name, more = "amqp/container/link", {"all_qos": True, "no_local": True, "selector": "a = 1"}
        away(site, site.consumer("topic/a", "container", options=options(name, **more)))
        declaration = site.router.durable_subscriptions.declared(name)
        site.send("topic/a", b"own", flags=0)
        site.router.publish(Publication(SilentOrigin(), Run("topic/a", "container", 0, b"", [b"x"]), ()))
        site.settle_down()
        found = site.router.durable_subscriptions[name]
        assert found.declaration == declaration
        assert (declaration.pattern, declaration.not_from, declaration.selector) == ("topic/a", "container", "a = 1")
        back = site.consumer("topic/a", "container", options=options(name, **more))
        assert [body for body, _ in back.got] == ["own"]

    def test_status_shows_it_without_opening_it(self) -> None:
        site = Site()
        away(site, site.consumer("topic/a", options=options("mqtt/c/topic/a")))
        site.send("topic/a", b"1", b"2")
        [figures] = site.router.durable_subscriptions.figures()
        assert figures == ("mqtt/c/topic/a", "topic/a", 2, 0, 0, 0)
        assert opened(site) == set()


def test_scan_of_all_subscriptions_finds_every_remaining_one() -> None:
    site = Site()
    names = [f"mqtt/c/topic/{i}" for i in range(20)]
    for name in names:
        away(site, site.consumer(name.split("/", 2)[2], options=options(name)))
    looking = iter(site.router.durable_subscriptions)
    found = [next(looking) for _ in range(3)]
    for name in names[1:18]:
        site.router.subscriptions.forget(name)
    assert {names[0], *names[18:]} <= {*found, *looking} <= {*names}
    assert list(site.router.durable_subscriptions) == sorted([names[0], *names[18:]])


@pytest.mark.parametrize("many", [False, True])
def test_backlog_is_delivered_after_a_restart(tmp_path: Path, many: bool) -> None:
    rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1))
    table = AddressTable([AddressRule("topic/#", AddressType.TOPIC)])
    names = [f"mqtt/c{i}/topic/{i}" for i in range(50 if many else 1)]

    def start() -> Router:
        return Router(rig.store, table, clock_ns=lambda: int(rig.now * 1e9), flush_soon=lambda: None)

    def settle(router: Router) -> None:
        router.flush()
        while rig.store.commits.committing or not rig.posted.empty():
            rig.turn()

    router = start()
    for name in names:
        consumer = Consumer(name)
        router.subscriptions.unsubscribe(
            consumer, router.subscriptions.subscribe(consumer, name.split("/", 2)[2], options(name)), forget=False
        )
    settle(router)
    router.publish(Publication(SilentOrigin(), Run("topic/0", "device", 1, b"", [b"1"]), ()))
    settle(router)
    for _ in range(2):
        rig.reopen()
        router = start()
        assert sorted(router.durable_subscriptions) == sorted(names)
        assert not router.durable_subscriptions.opened
        rig.now += 3600
        for _ in range(4):
            router.tick()
            settle(router)
            rig.now += SUBSCRIPTION_LINGER_S
    consumer = Consumer("back")
    router.subscriptions.subscribe(consumer, "topic/0", options(names[0])).pump()
    while not consumer.got:
        rig.turn()
    assert consumer.got == [("1", 0)]
    rig.store.close()


FILTERS = ("topic/a", "topic/+", "topic/#", "topic/b/#", "#")
ADDRESSES = ("topic/a", "topic/b", "topic/b/c", "queue/a", "other")


class ComingAndGoing(RuleBasedStateMachine):
    """Each subscriber gets its messages while subscribers come and go, time passes and the router restarts."""

    @initialize()
    def begin(self) -> None:
        self.site = Site()
        self.site.table = AddressTable(
            [AddressRule("topic/#", AddressType.TOPIC), AddressRule("queue/#", AddressType.QUEUE)]
        )
        self.site.router.reconfigure(self.site.table)
        self.owed: dict[str, list[str]] = {}
        self.had: dict[str, list[str]] = {}
        self.there: dict[str, Consumer] = {}
        self.sent = 0

    @rule(pattern=st.sampled_from(FILTERS), who=st.integers(0, 1))
    def come(self, pattern: str, who: int) -> None:
        name = f"mqtt/c{who}/{pattern}"
        self.owed.setdefault(name, [])
        self.had.setdefault(name, [])
        if name not in self.there:
            self.there[name] = self.site.consumer(pattern, f"c{who}", options=options(name))

    @rule(accepts=st.booleans(), data=st.data())
    @precondition(lambda self: self.there)
    def go(self, accepts: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.there)))
        consumer = self.there.pop(name)
        if accepts:
            self.take(name, consumer)
        assert consumer.joined is not None
        self.site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)

    def take(self, name: str, consumer: Consumer) -> None:
        self.site.settle_down()
        for stored, subscription in consumer.deliveries:
            last = stored.position + len(stored.run.bodies) - 1
            subscription.settle(consumer, stored.position, last, DeliveryOutcome.ACCEPTED)
            self.had[name] += [body.decode() for body in stored.run.bodies]
        consumer.deliveries.clear()

    @rule(address=st.sampled_from(ADDRESSES), qos=st.sampled_from([0, 1, 1]), expires=st.booleans())
    def send(self, address: str, qos: int, expires: bool) -> None:
        self.sent += 1
        properties = encode_run(Properties(message_expiry_interval_s=1_000_000)) if expires else b""
        self.site.send(address, str(self.sent).encode(), properties=properties, flags=qos)
        kind = self.site.table.rule(address).type
        for name, owed in self.owed.items():
            if qos and kind is AddressType.TOPIC and matches(name.split("/", 2)[2], address):
                owed.append(str(self.sent))

    @rule(seconds=st.sampled_from([0.3, SUBSCRIPTION_LINGER_S, SUBSCRIPTIONS_PASSED_S]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(3):
            self.site.settle_down(wait_s=seconds)

    @rule()
    def start_anew(self) -> None:
        for name in list(self.there):
            consumer = self.there.pop(name)
            self.take(name, consumer)
            assert consumer.joined is not None
            self.site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        self.site.settle_down(wait_s=1.0)
        self.site.boot()

    @rule(data=st.data())
    @precondition(lambda self: self.owed)
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.owed)))
        self.there.pop(name, None)
        del self.owed[name], self.had[name]
        self.site.router.subscriptions.forget(name)
        self.site.settle_down()

    @invariant()
    def who_is_level_is_counted(self) -> None:
        if hasattr(self, "site"):
            absent = self.site.router.durable_subscriptions._absent
            for log, follower in absent._followers.items():
                [(level,)] = absent._execute("SELECT count(*) FROM place WHERE log = ? AND NOT behind", (log,))
                assert follower.level == level

    @invariant()
    def all_are_there(self) -> None:
        if hasattr(self, "site"):
            assert set(self.site.router.durable_subscriptions) == set(self.owed)

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        for name in self.owed:
            if name not in self.there:
                self.there[name] = self.site.consumer(name.split("/", 2)[2], name.split("/")[1], options=options(name))
            self.take(name, self.there[name])
            assert sorted(set(self.had[name]), key=int) == self.owed[name]
            assert len(set(self.had[name])) == len(self.had[name])


TestComingAndGoing = ComingAndGoing.TestCase
TestComingAndGoing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
