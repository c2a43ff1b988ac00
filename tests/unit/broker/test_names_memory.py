"""Memory of unused names, measured by the allocations of Python, which do not depend on the machine.

SQLite's own allocations, such as the table of absent subscriptions, are not traced: `tests/fault/hostile/test_names.py`
measures the whole process."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.message import Run, Stored
from edge.broker.limits import SUBSCRIPTION_LINGER_S, Limits
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Refusal, SubscribeOptions, Subscription
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.store.limits import StoreLimits
from tests.contract.store.rig import Rig, sqlite_rig
from tests.support.run_consumer import RunConsumer

QUEUES = 2_000
GROUP = 500
SENT_TO_BYTES_MAX = 500
"""Bytes of a queue and its address after one message: its counter, and the record of its first use."""
BYTES_MAX = 100
"""Bytes of a queue and its log, after a start."""
FILTERS = 1_000
FILTER_BYTES_MAX = 100
"""Bytes of an unused durable subscription, with its cursor."""
SESSION_BYTES_MAX = 300
"""Bytes of a session with an absent client, without its subscriptions."""
LEFT_BYTES_MAX = 100_000
"""Bytes that 2 000 subscriptions may leave: 50 each, where an idle one takes 200."""
FIXED_BYTES_MAX = 300_000
"""Bytes of a store and a router without names."""


class Device(interfaces.Origin):
    name = "device"

    def __init__(self) -> None:
        self.accepts = 0

    def accepted(self, tokens: Sequence[int]) -> None:
        self.accepts += len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError(why)


class Subscriber(RunConsumer):
    credit = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def take(self, subscription: Subscription, stored: Stored) -> None:
        raise AssertionError(stored)


def router_on(rig: Rig) -> Router:
    table = AddressTable([AddressRule("queue/#", AddressType.QUEUE)])
    return Router(
        rig.store,
        table,
        clock_ns=lambda: int(rig.now * 1e9),
        limits=Limits(queues_max=10 * QUEUES, subscriptions_max=10**6, sessions_max=10**6),
    )


def make_queues(rig: Rig, router: Router, first: int, count: int) -> None:
    device = Device()
    for start in range(first, first + count, GROUP):
        for i in range(start, start + GROUP):
            router.publish(Publication(device, Run(f"queue/{i:08d}", "device", 1, b"", [b"x"]), [i]))
        router.flush()
        while rig.store.commits.committing:
            rig.turn()
    router.tick()
    assert device.accepts == count
    rig.commits.clear()


def allocated(do: Callable[[], object]) -> int:
    """Return the bytes that the call allocates and keeps."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = do()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        del kept


def test_unused_queue_takes_little_memory(tmp_path: Path) -> None:
    limits = StoreLimits(logs_in_use_max=100, counted_commits_max=1)
    rig = sqlite_rig(tmp_path, limits)
    router = router_on(rig)
    make_queues(rig, router, 0, 2 * GROUP)  # includes allocations that do not depend on the number of names
    assert allocated(lambda: make_queues(rig, router, 2 * GROUP, QUEUES)) < SENT_TO_BYTES_MAX * QUEUES
    rig.store.close()

    def start() -> tuple[Rig, Router]:
        rig = sqlite_rig(tmp_path, limits)
        return rig, router_on(rig)

    started: list[tuple[Rig, Router]] = []
    assert allocated(lambda: started.append(start())) < BYTES_MAX * (QUEUES + 2 * GROUP)
    assert len(started[0][1].queues) == QUEUES + 2 * GROUP
    started[0][0].store.close()


def mqtt(i: int) -> tuple[str, str, SubscribeOptions]:
    """Return the name of the subscriber, its filter and its options."""
    name, pattern = f"client{i // 100:05d}", f"plant/{i // 100:05d}/{i:08d}/command"
    return name, pattern, SubscribeOptions(durable_name=f"mqtt/{name}/{pattern}")


def amqp(i: int) -> tuple[str, str, SubscribeOptions]:
    """Return the same for a JMS client."""
    name = f"client{i:08d}"
    options = SubscribeOptions(durable_name=f"amqp/{name}/alarms", all_qos=True, selector="")
    return name, f"plant/{i:08d}/alarm", options


Kind = Callable[[int], tuple[str, str, SubscribeOptions]]


def subscribe(rig: Rig, router: Router, kind: Kind, first: int, count: int) -> None:
    """Make durable subscriptions; their subscribers leave for long."""
    for start in range(first, first + count, GROUP):
        for i in range(start, start + GROUP):
            name, pattern, options = kind(i)
            consumer = Subscriber(name)
            router.subscriptions.unsubscribe(
                consumer, router.subscriptions.subscribe(consumer, pattern, options), forget=False
            )
        router.flush()
        while rig.store.commits.committing:
            rig.turn()
        rest(rig, router)
    rig.commits.clear()


def rest(rig: Rig, router: Router) -> None:
    """Let time pass until no subscription is held open."""
    for _ in range(40):
        if not router.durable_subscriptions.opened:
            break
        rig.now += SUBSCRIPTION_LINGER_S
        router.tick()
        router.flush()
        while rig.store.commits.committing:
            rig.turn()
    assert not router.durable_subscriptions.opened
    rig.store.state.put("nothing", "", b"")  # so that memory of the last commit is released
    router.flush()
    while rig.store.commits.committing:
        rig.turn()


@pytest.mark.parametrize(
    ("kind", "filters", "most"),
    [
        (mqtt, FILTERS, FILTER_BYTES_MAX),
        (amqp, FILTERS, FILTER_BYTES_MAX + 50),  # its filter is not part of its name
        pytest.param(mqtt, 100_000, FILTER_BYTES_MAX, marks=pytest.mark.slow),
    ],
)
def test_durable_subscription_without_a_consumer_takes_little_memory(
    tmp_path: Path, kind: Kind, filters: int, most: int
) -> None:
    limits = StoreLimits(counted_commits_max=1)
    rig = sqlite_rig(tmp_path, limits)
    router = router_on(rig)
    subscribe(rig, router, kind, 0, GROUP)  # includes allocations that do not depend on the number of names
    taken = allocated(lambda: subscribe(rig, router, kind, GROUP, filters))
    assert taken < most * filters
    total = filters + GROUP
    assert len(router.durable_subscriptions) == total
    rig.store.close()

    def start() -> tuple[Rig, Router]:
        rig = sqlite_rig(tmp_path, limits)
        return rig, router_on(rig)

    started: list[tuple[Rig, Router]] = []
    assert allocated(lambda: started.append(start())) < FILTER_BYTES_MAX * total + FIXED_BYTES_MAX
    rig, router = started[0]
    assert len(router.durable_subscriptions) == total
    for name in list(router.durable_subscriptions):
        router.subscriptions.forget(name)
    gc.collect()
    assert len(router.durable_subscriptions) == 0
    rig.store.close()


class Connected:
    """The connection of a client as its session sees it."""

    congested = False

    def abort(self) -> None:
        raise AssertionError


def sessions_away(
    rig: Rig, router: Router, sessions: SessionRegistry, first: int, count: int, filters: int = 1
) -> None:
    """Connect clients that subscribe to one or several topics and leave for long."""
    for start in range(first, first + count, GROUP):
        for i in range(start, start + GROUP):
            connected: Any = Connected()
            session, _ = sessions.take(f"client{i:08d}", connected, clean_start=False, expiry_s=10**8, user="fleet")
            sessions.join(session)
            for each in range(filters):
                sessions.subscribe(session, SubscriptionRequest(f"plant/{i:08d}/command" + "/x" * each, 1), 0)
            sessions.on_disk.save(session)
            sessions.leave(session, connected, None, rig.now)
        router.flush()
        while rig.store.commits.committing:
            rig.turn()
        sessions.tick(rig.now)
        rest(rig, router)
        sessions.tick(rig.now)
    rig.commits.clear()


def test_session_of_an_absent_client_takes_little_memory(tmp_path: Path) -> None:
    limits = StoreLimits(counted_commits_max=1)
    rig = sqlite_rig(tmp_path, limits)
    router = router_on(rig)
    sessions = SessionRegistry(router, rig.store, MqttTranslator())
    sessions_away(rig, router, sessions, 0, GROUP)
    each = allocated(lambda: sessions_away(rig, router, sessions, GROUP, FILTERS)) / FILTERS
    assert each < FILTER_BYTES_MAX + SESSION_BYTES_MAX
    total = FILTERS + GROUP
    assert len(sessions) == total
    rig.store.close()

    def start() -> tuple[Rig, Router, SessionRegistry]:
        rig = sqlite_rig(tmp_path, limits)
        router = router_on(rig)
        return rig, router, SessionRegistry(router, rig.store, MqttTranslator())

    started: list[tuple[Rig, Router, SessionRegistry]] = []
    taken = allocated(lambda: started.append(start()))
    assert taken < (FILTER_BYTES_MAX + SESSION_BYTES_MAX) * total + FIXED_BYTES_MAX
    rig, _, sessions = started[0]
    assert len(sessions) == total
    rig.store.close()


@pytest.mark.parametrize("sessions", [False, True])
def test_closed_names_are_freed_without_the_garbage_collector(tmp_path: Path, sessions: bool) -> None:
    """Memory of closed names is freed by reference counts: until the collector ran, a burst of names held ten times as
    much."""
    rig = sqlite_rig(tmp_path)
    router = router_on(rig)
    registry = SessionRegistry(router, rig.store, MqttTranslator())
    gc.collect()
    gc.disable()
    try:
        if sessions:
            sessions_away(rig, router, registry, 0, GROUP, filters=2)  # which may have topics in common
        else:
            subscribe(rig, router, mqtt, 0, GROUP)
        assert gc.collect() < GROUP / 2
    finally:
        gc.enable()
    rig.store.close()


def test_deleted_subscriptions_leave_no_memory(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    router = router_on(rig)
    sessions = SessionRegistry(router, rig.store, MqttTranslator())

    def come_and_go(first: int) -> None:
        connected: Any = Connected()
        for start in range(first, first + 2 * GROUP, GROUP):
            session, _ = sessions.take("client", connected, clean_start=False, expiry_s=1, user="fleet")
            sessions.join(session)
            for i in range(start, start + GROUP):
                sessions.subscribe(session, SubscriptionRequest(f"plant/{i}", 1), 0)
            for i in range(start, start + GROUP // 2):
                sessions.unsubscribe(session, f"plant/{i}")
            sessions.on_disk.save(session)
            sessions.leave(session, connected, None, rig.now)
            rig.now += 2
            sessions.tick(rig.now)
            rest(rig, router)
        assert len(sessions) == len(router.durable_subscriptions) == 0
        rig.commits.clear()

    after: list[int] = []

    def rounds() -> None:
        for i in range(3):
            come_and_go(2 * GROUP * i)
            gc.collect()
            after.append(tracemalloc.get_traced_memory()[0])

    allocated(rounds)
    assert after[2] - after[0] < LEFT_BYTES_MAX
    rig.store.close()
