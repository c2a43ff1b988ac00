"""A new forwarder skips earlier messages; after a change of its filter each pending message is sent once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from bridge.message import Run, Stored
from edge.broker.delivery.durable import Declaration
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressTable
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer


class Device(interfaces.Origin):
    name = "device"

    def accepted(self, tokens: Sequence[int]) -> None: ...

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError(why)


class Uplink(RunConsumer):
    name = "uplink"
    credit = 100

    def __init__(self) -> None:
        self.sequences: list[tuple[str, int]] = []
        self.under_way: list[tuple[Subscription, int]] = []

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.sequences.append((stored.run.address, stored.sequence))
        self.under_way.append((subscription, stored.position))


def test_new_forwarder_starts_at_its_base() -> None:
    posted: deque[Callable[[], None]] = deque()

    def settle() -> None:
        while posted:
            posted.popleft()()

    store = MemoryStore(post=posted.append)
    router = Router(store, AddressTable([]), clock_ns=lambda: 1)
    router.subscriptions.declare(Declaration(name="mqtt/absent/#", pattern="#"))
    for address in ("plant/1", "plant/1", "other"):
        router.publish(Publication(Device(), Run(address, "device", 1, b"", [b"x"]), [1]))
        settle()
    uplink = Uplink()
    router.subscriptions.subscribe(uplink, "plant/#", SubscribeOptions(durable_name="forwarder/hub/a", all_qos=True))
    assert router.durable_subscriptions.bases == {"plant/1": 2}
    settle()
    for address in ("plant/1", "plant/2"):
        router.publish(Publication(Device(), Run(address, "device", 0, b"", [b"y"]), ()))
    settle()
    assert uplink.sequences == [("plant/1", 2), ("plant/2", 0)]
    again = Router(store, AddressTable([]), clock_ns=lambda: 1)
    assert again.durable_subscriptions.bases == {"plant/1": 2}


def test_messages_in_flight_while_the_filter_changes_are_sent_once() -> None:
    posted: deque[Callable[[], None]] = deque()
    now = 1000.0
    store = MemoryStore(post=posted.append, clock=lambda: now)
    router = Router(store, AddressTable([]), clock_ns=lambda: int(now * 1e9))

    def settle() -> None:
        nonlocal now
        for _ in range(4):
            now += 1
            router.tick()
            while posted:
                posted.popleft()()

    def publish(address: str) -> None:
        router.publish(Publication(Device(), Run(address, "device", 1, b"", [b"x"]), [1]))
        settle()

    options = SubscribeOptions(durable_name="forwarder/hub/a", all_qos=True)
    uplink = Uplink()
    router.subscriptions.subscribe(uplink, "plant/#", options)
    publish("plant/1")
    assert uplink.sequences == [("plant/1", 0)]
    router.subscriptions.subscribe(uplink, "#", options).pump()
    publish("other")
    assert uplink.sequences == [("plant/1", 0), ("other", 0)]
    for subscription, position in uplink.under_way:
        subscription.settle(uplink, position, position, DeliveryOutcome.ACCEPTED)
    settle()
    (durable,) = router.durable_subscriptions.figures()
    assert (durable.pattern, durable.backlog, durable.outstanding) == ("#", 0, 0)
    assert [each.position for each in store.cursor_records()] == [2]
