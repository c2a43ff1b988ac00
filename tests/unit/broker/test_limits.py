"""Each bound of the broker: input above it is refused or dropped and counted, and the rest goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from bridge.message import Run, Stored
from edge.broker import limits
from edge.broker.delivery import log as log_subscription
from edge.broker.delivery import transient
from edge.broker.model import interfaces, remembered_names
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.router import competing_consumers, route_table
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer


class Device(interfaces.Origin):
    """Origin that records its answers."""

    def __init__(self, name: str = "device") -> None:
        self.name = name
        self.answers: list[object] = []

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers += ["accepted"] * len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers += [why] * len(tokens)


class Reader(RunConsumer):
    """Consumer with a fixed credit."""

    credit = 0

    def __init__(self, credit: int = 0) -> None:
        self.name = "reader"
        self.credit = credit
        self.bodies: list[bytes] = []
        self.spans: list[tuple[Subscription, int, int]] = []

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.credit -= len(stored.run.bodies)
        self.bodies += stored.run.bodies
        self.spans.append((subscription, stored.position, stored.position + len(stored.run.bodies) - 1))


class Rig:
    """A router over the in-memory store; callbacks run in `settle`."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(post=self.posted.append)
        rules = [AddressRule("q/#", AddressType.QUEUE), AddressRule("any/#", AddressType.ANYCAST)]
        self.router = Router(self.store, AddressTable(rules), clock_ns=lambda: 1)
        self.device = Device()

    def publish(self, address: str, *bodies: bytes, flags: int = 1) -> None:
        tokens = list(range(len(bodies))) if flags & 3 else ()
        self.router.publish(Publication(self.device, Run(address, self.device.name, flags, b"", list(bodies)), tokens))

    def settle(self) -> None:
        while self.posted:
            self.posted.popleft()()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_cache_of_routes_and_rules_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_names, "NAMES_REMEMBERED_MAX", 10)
    for number in range(35):
        rig.publish(f"t/{number}", b"x")
        assert len(rig.router.routes.made) <= 10
        assert len(rig.router.addresses.table._found) <= 10
    assert rig.device.answers == ["accepted"] * 35


def test_name_seen_once_is_not_cached(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_names, "NAMES_REMEMBERED_AT_ONCE", 5)
    monkeypatch.setattr(remembered_names, "NAMES_NOTED_MAX", 300)
    made = rig.router.routes.made
    for number in range(290):
        rig.publish(f"q/{number}", b"x")
    assert len(made) < 290 / 4, "but for those that share a bit"
    for number in range(290):
        rig.publish(f"q/{number}", b"x")
    assert len(made) == 290
    rig.router.forget_routes()
    for number in range(290):
        rig.publish(f"q/{number}", b"x")
    assert len(made) == 290, "they did come before"
    for number in range(300, 1_000):
        rig.publish(f"q/{number}", b"x")
    assert len(made) < 290 + 700 / 4, "what is noted begins anew now and then"


class ForgettingLanes:
    """Source that counts the requests to forget routes."""

    forgotten = 0

    def publish(self) -> None:
        """Do nothing: no message waits."""

    def count_flows(self) -> None:
        """Do nothing: no message is counted here."""

    def forget_routes(self) -> None:
        self.forgotten += 1


def test_routes_with_a_common_prefix_are_cached(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "NAMES_REMEMBERED_MAX", 10)
    lanes = ForgettingLanes()
    rig.router.add_source(lanes)
    for number in range(35):
        rig.publish(f"t{number}/1", b"x")
        rig.publish(f"t{number}/2", b"x")
        made = rig.router.routes.made
        assert made[f"t{number}/1"] is made[f"t{number}/2"]
        assert len(made._of_prefixes) <= 10
    assert not lanes.forgotten  # all cached routes are still valid


def test_long_addresses_are_not_cached(rig: Rig) -> None:
    reader = Reader(1000)
    rig.router.subscriptions.subscribe(reader, "t/#", SubscribeOptions(durable_name="d"))
    long = "t/" + "x" * limits.ADDRESS_REMEMBERED_CHARACTERS_MAX
    for address in (long, "t/short"):
        rig.publish(address, b"x")
        rig.settle()
    (part,) = rig.router.durable_subscriptions["d"].parts
    assert list(rig.router.routes.made) == list(part._address_matches or {"t/short": True}) == ["t/short"]
    assert long not in rig.router.addresses.table._found
    assert reader.bodies == [b"x"] * 2


def test_anycast_addresses_without_a_consumer_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competing_consumers, "ANYCAST_GROUPS_MAX", 10)
    reader = Reader(1000)
    rig.router.subscriptions.subscribe(reader, "any/kept", SubscribeOptions())
    for number in range(35):
        rig.publish(f"any/{number}", b"x")
        assert len(rig.router.subscriptions.competing.anycast) <= 11
    rig.publish("any/kept", b"y")
    assert reader.bodies == [b"y"]


def test_addresses_of_a_subscription_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_subscription, "ADDRESSES_CACHED_MAX", 4)
    reader = Reader(1000)
    rig.router.subscriptions.subscribe(reader, "t/#", SubscribeOptions(durable_name="d"))
    for number in range(20):
        rig.publish(f"t/{number}", b"%d" % number)
        rig.settle()
    (part,) = rig.router.durable_subscriptions["d"].parts
    assert len(part._address_matches) <= 4
    assert reader.bodies == [b"%d" % number for number in range(20)]


def test_slow_live_subscriber_holds_at_most_its_share(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "TRANSIENT_BUFFER_BYTES_MIN", 1_000)
    monkeypatch.setattr(transient, "TRANSIENT_BUFFER_BYTES_MAX", 3_000)
    rig.router.pool.bytes_max = 4_000
    slow, slower, quick = Reader(), Reader(), Reader(1_000)
    for reader, address in ((slow, "t/a"), (slower, "t/b"), (quick, "t/#")):
        rig.router.subscriptions.subscribe(reader, address, SubscribeOptions())
    for _ in range(50):
        rig.publish("t/a", bytes(97))
    for _ in range(50):
        rig.publish("t/b", bytes(97))
    assert len(quick.bodies) == 100, "others are not affected"
    assert rig.router.pool.waiting_bytes <= 4_000
    slow.credit = slower.credit = 1_000
    for subscription in list(rig.router.subscriptions.live):
        subscription.pump()
    assert (len(slow.bodies), len(slower.bodies)) == (30, 10)
    assert sorted(subscription.dropped for subscription in rig.router.subscriptions.live) == [0, 20, 40]
    assert rig.router.pool.waiting_bytes == 0


def test_all_slow_live_subscribers_hold_at_most_the_pool_and_a_quarter(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow subscriber may hold a little above the full pool, so that others do not cut it off."""
    size = Run("t/00", rig.device.name, 1, b"", [bytes(100)]).size
    monkeypatch.setattr(transient, "TRANSIENT_BUFFER_BYTES_LEAST", 2 * size)
    monkeypatch.setattr(transient, "TRANSIENT_BUFFER_BYTES_MIN", 10 * size)
    monkeypatch.setattr(transient, "TRANSIENT_BUFFER_BYTES_MAX", 10 * size)
    rig.router.pool.bytes_max = 40 * size
    for number in range(20):
        rig.router.subscriptions.subscribe(Reader(), f"t/{number:02}", SubscribeOptions())
        for _ in range(10):
            rig.publish(f"t/{number:02}", bytes(100))
    assert rig.router.pool.waiting_bytes == (50 + 15 * 2) * size


def test_served_subscription_has_a_bounded_buffer_and_loses_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_subscription, "SUBSCRIPTION_BUFFER_BYTES_MAX", 500)
    monkeypatch.setattr("edge.broker.delivery.log_reader.READ_BYTES_MAX", 300)
    reader = Reader()
    subscription = rig.router.subscriptions.subscribe(reader, "q/1", SubscribeOptions())
    for number in range(40):
        rig.publish("q/1", b"%0100d" % number)
        rig.settle()
    queue = rig.router.queues["q/1"]
    assert queue.buffer.bytes <= 600
    assert queue.backlog == 40
    while len(reader.bodies) < 40:
        before = len(reader.bodies)
        reader.credit = 7
        subscription.pump()
        rig.settle()
        assert len(reader.bodies) > before
    assert [int(body) for body in reader.bodies] == list(range(40))
    for one, first, last in reader.spans:
        one.settle(reader, first, last, DeliveryOutcome.ACCEPTED)
    assert (queue.backlog, queue.outstanding) == (0, 0)


def test_full_anycast_address_refuses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.publish("any/1", b"nobody there")
    assert rig.device.answers == [Refusal.NO_CONSUMER]
    rig.router.subscriptions.subscribe(Reader(), "any/1", SubscribeOptions())
    body = bytes(limits.TRANSIENT_BUFFER_BYTES_MIN // 2 - len("any/1"))
    for _ in range(3):
        rig.publish("any/1", body)
    assert rig.device.answers == [Refusal.NO_CONSUMER, Refusal.FULL]
