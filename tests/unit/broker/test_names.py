"""Names that clients create: their number, their lifetime, and their release."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.message import AMQP, DURABLE, RETAIN, Run, Stored
from edge.broker.limits import NAME_CHARACTERS, QUEUE_LINGER_S, QUEUES_CHECKED_MAX, Limits
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import AddressError, DeliveryOutcome, Refusal, SubscribeOptions, Subscription
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router import queues
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

SMALL = Limits(
    queues_max=6, queues_per_user_max=3, queue_unused_s=100, subscriptions_max=4, subscriptions_per_user_max=2,
    filters_max=4, filters_per_user_max=2, retained_max=6, retained_per_user_max=3,
)  # fmt: skip
RULES = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("queue/ours", AddressType.QUEUE)]


class Device(interfaces.Origin, RunConsumer):
    """Device that sends, and records its deliveries."""

    credit = 1000

    def __init__(self, user: str = "") -> None:
        self.name = f"device of {user}"
        self.user = user
        self.answers: list[object] = []
        self.got: list[bytes] = []
        self.sequences: list[int] = []

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers += ["accepted"] * len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers += [why] * len(tokens)

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.got += stored.run.bodies
        self.sequences += range(stored.sequence, stored.sequence + len(stored.run.bodies))
        if stored.position >= 0:
            last = stored.position + len(stored.run.bodies) - 1
            subscription.settle(self, stored.position, last, DeliveryOutcome.ACCEPTED)


class Site:
    """A router with small limits."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 1000.0
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        self.boot()

    def boot(self) -> None:
        self.store.commits.listeners.clear()
        self.router = Router(
            self.store,
            AddressTable(RULES),
            clock_ns=lambda: int(self.now * 1e9),
            flush_soon=lambda: None,
            monotonic_s=lambda: self.now,
            limits=SMALL,
        )

    def settle(self, wait_s: float = 0.0) -> None:
        self.now += wait_s
        for _ in range(8):
            self.router.tick()
            while self.posted:
                self.posted.popleft()()

    def send(self, device: Device, address: str, body: bytes = b"m", *, retain: bool = False) -> object:
        flags = 1 | DURABLE | (RETAIN if retain else 0)
        self.router.publish(Publication(device, Run(address, device.name, flags, b"", [body]), [1]))
        self.settle()
        return device.answers[-1]

    def take(self, address: str) -> Device:
        """Consume all messages of a queue, and leave."""
        device = Device()
        joined = self.router.subscriptions.subscribe(device, address, SubscribeOptions())
        joined.pump()
        self.settle()
        self.router.subscriptions.unsubscribe(device, joined, forget=False)
        self.settle()
        return device

    def count(self, kind: NameKind) -> int:
        return self.router.names.count(kind)


class TestQuotas:
    def test_queues_of_a_user_are_limited(self) -> None:
        site, greedy, other = Site(), Device("greedy"), Device("other")
        assert [site.send(greedy, f"queue/{i}") for i in range(5)] == ["accepted"] * 3 + [Refusal.NAMES] * 2
        assert site.send(other, "queue/x") == "accepted", "others have their own"
        assert site.send(greedy, "queue/0") == "accepted", "what is there goes on"
        assert site.send(greedy, "queue/ours") == "accepted", "the configuration's name is nobody's"
        assert site.count(NameKind.QUEUE) == 4

    def test_queues_of_the_space_are_limited(self) -> None:
        site = Site()
        anybody = Device()
        assert [site.send(anybody, f"queue/{i}") for i in range(8)] == ["accepted"] * 6 + [Refusal.NAMES] * 2

    def test_queue_created_by_a_consumer_counts(self) -> None:
        site, greedy = Site(), Device("greedy")
        for i in range(3):
            site.router.subscriptions.subscribe(greedy, f"queue/{i}", SubscribeOptions())
        with pytest.raises(AddressError) as raised:
            site.router.subscriptions.subscribe(greedy, "queue/3", SubscribeOptions())
        assert raised.value.refusal is Refusal.NAMES
        assert "greedy" in str(raised.value)

    def test_creators_are_known_after_a_restart(self) -> None:
        site, greedy = Site(), Device("greedy")
        for i in range(3):
            site.send(greedy, f"queue/{i}")
        for i in range(2):
            site.router.subscriptions.subscribe(greedy, f"t/{i}", SubscribeOptions(durable_name=f"s{i}"))
            site.send(greedy, f"t/{i}", retain=True)
        site.settle()
        site.boot()
        assert site.send(greedy, "queue/3") == Refusal.NAMES
        assert site.send(Device("other"), "queue/3") == "accepted"
        with pytest.raises(AddressError):
            site.router.subscriptions.subscribe(greedy, "t/2", SubscribeOptions(durable_name="s2"))
        assert site.send(greedy, "t/2", retain=True) == "accepted"
        assert site.send(greedy, "t/3", retain=True) == Refusal.NAMES

    def test_subscriptions_are_limited(self) -> None:
        site, greedy = Site(), Device("greedy")
        durable = [
            site.router.subscriptions.subscribe(greedy, f"t/{i}", SubscribeOptions(durable_name=f"s{i}"))
            for i in range(2)
        ]
        live = [site.router.subscriptions.subscribe(greedy, f"t/{i}", SubscribeOptions()) for i in range(2)]
        for options in (SubscribeOptions(durable_name="s2"), SubscribeOptions()):
            with pytest.raises(AddressError):
                site.router.subscriptions.subscribe(greedy, "t/2", options)
        site.router.subscriptions.subscribe(
            greedy, "t/2", SubscribeOptions(qos0_only=True)
        )  # counterpart of a durable subscription
        for one in (*durable, *live):
            site.router.subscriptions.unsubscribe(greedy, one, forget=True)
        assert site.count(NameKind.SUBSCRIPTION) == site.count(NameKind.FILTER) == 0

    def test_forwarders_are_not_counted(self) -> None:
        site = Site()
        for i in range(9):
            site.router.subscriptions.subscribe(
                Device("u"), f"t/{i}", SubscribeOptions(durable_name=f"forwarder/hub/{i}")
            )
        assert site.count(NameKind.SUBSCRIPTION) == 0

    def test_retained_messages_are_limited(self) -> None:
        site, greedy = Site(), Device("greedy")
        reader = Device()
        site.router.subscriptions.subscribe(reader, "t/#", SubscribeOptions())
        answers = [site.send(greedy, f"t/{i}", retain=True) for i in range(4)]
        assert answers == ["accepted"] * 3 + [Refusal.NAMES]
        assert len(reader.got) == 3, "what is refused comes again: nobody is to have it twice"
        assert site.send(greedy, "t/0", b"newer", retain=True) == "accepted"
        assert site.send(greedy, "t/1", b"", retain=True) == "accepted"
        assert site.send(greedy, "t/9", retain=True) == "accepted"
        assert site.send(greedy, "t/0", bytes(NAME_CHARACTERS), retain=True) == Refusal.NAMES, "it would be two"
        assert [run.bodies for run in site.router.retained.matching("t/0")] == [[b"newer"]]

    def test_temporary_queue_counts(self) -> None:
        site = Site()
        for i in range(2):
            site.router.subscriptions.live.make_temporary_queue(f"temp/{i}", "greedy")
        with pytest.raises(AddressError):
            site.router.subscriptions.live.make_temporary_queue("temp/2", "greedy")
        site.router.subscriptions.end_temporary_queue("temp/0")
        site.router.subscriptions.live.make_temporary_queue("temp/2", "greedy")

    def test_long_names_count_several_times(self) -> None:
        names = NameQuotas(SMALL)
        assert names.has_room(NameKind.QUEUE, "u", 3 * NAME_CHARACTERS - 1)
        assert not names.has_room(NameKind.QUEUE, "u", 3 * NAME_CHARACTERS)
        assert [one.refused for one in names if one.kind is NameKind.QUEUE] == [1]

    @given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3 * NAME_CHARACTERS)), max_size=30))
    def test_deleted_names_free_their_quota(self, made: list[tuple[str, int]]) -> None:
        names = NameQuotas(SMALL)
        kept = []
        for user, size in made:
            if names.has_room(NameKind.QUEUE, user, size):
                names.add(NameKind.QUEUE, user, size)
                kept.append((user, size))
            assert names.count(NameKind.QUEUE) <= SMALL.queues_max
        for user, size in reversed(kept):
            names.remove(NameKind.QUEUE, user, size)
        assert names.count(NameKind.QUEUE) == 0
        assert not names._counts[NameKind.QUEUE].users


class TestQueues:
    def test_queue_without_a_consumer_is_closed(self) -> None:
        site = Site()
        site.send(Device(), "queue/a")
        assert not site.router.queues.opened
        assert site.router.queues.backlog("queue/a") == 1
        assert site.take("queue/a").got == [b"m"]

    def test_name_without_a_log_is_not_a_queue_after_a_restart(self) -> None:
        site = Site()
        site.send(Device("greedy"), "queue/a")
        site.store.state.put(queues.KIND, "queue/b", b"greedy")  # as if there were no room for its log
        site.settle()
        for _ in range(2):
            site.boot()
            assert list(site.router.queues) == ["queue/a"]
            assert site.count(NameKind.QUEUE) == 1
            site.settle()
        assert dict(site.store.state.items(queues.KIND)) == {"queue/a": b"greedy"}
        with pytest.raises(KeyError):
            site.router.queues["queue/b"]
        assert site.send(Device("greedy"), "queue/b") == "accepted"
        assert site.take("queue/b").got == [b"m"]

    def test_log_of_a_forgotten_queue_is_reused_by_another(self) -> None:
        site = Site()
        site.send(Device("first"), "queue/a")
        log = site.store.logs.find("queue queue/a")
        site.take("queue/a")
        site.settle(QUEUE_LINGER_S)
        site.settle(QUEUE_LINGER_S)
        site.settle(SMALL.queue_unused_s)
        site.settle()
        assert list(site.router.queues) == []
        site.send(Device("second"), "queue/b", b"2")
        assert site.store.logs.find("queue queue/b") == log
        assert list(site.router.queues) == ["queue/b"]
        assert "queue/a" not in site.router.queues
        assert site.take("queue/b").got == [b"2"]

    def test_queue_is_closed_when_its_consumers_have_left(self) -> None:
        site = Site()
        site.send(Device(), "queue/a")
        site.take("queue/a")
        assert "queue/a" in site.router.queues.opened
        site.settle(QUEUE_LINGER_S)
        assert not site.router.queues.opened
        site.send(Device(), "queue/a", b"2")
        assert site.take("queue/a").got == [b"2"]

    def test_queue_with_outstanding_messages_is_open(self) -> None:
        site, device = Site(), Device()
        site.send(device, "queue/a")
        held: list[Subscription] = []
        device.deliver = lambda subscription, _stored: held.append(subscription)  # type: ignore[method-assign]
        joined = site.router.subscriptions.subscribe(device, "queue/a", SubscribeOptions())
        joined.pump()
        site.settle()
        site.router.subscriptions.unsubscribe(device, joined, forget=False, keep=True)
        site.settle(QUEUE_LINGER_S)
        site.settle(QUEUE_LINGER_S)
        assert "queue/a" in site.router.queues.opened
        held[0].settle(device, 0, 0, DeliveryOutcome.ACCEPTED)
        site.settle(QUEUE_LINGER_S)
        site.settle(QUEUE_LINGER_S)
        assert not site.router.queues.opened

    def test_consumer_of_a_filter_gets_backlog_and_new_messages_of_closed_queues(self) -> None:
        site, device = Site(), Device()
        site.send(Device(), "queue/a", b"before")
        joined = site.router.subscriptions.subscribe(device, "queue/+", SubscribeOptions())
        joined.pump()
        site.settle()
        site.send(Device(), "queue/b", b"after")
        assert device.got == [b"before", b"after"]
        site.router.subscriptions.unsubscribe(device, joined, forget=False)
        site.send(Device(), "queue/b", b"left")
        assert device.got == [b"before", b"after"]

    def test_priorities_count_for_messages_without_a_consumer(self) -> None:
        """Priorities count too for several messages of one commit, and for messages from before the queue was
        opened."""
        site, device = Site(), Device()
        data = b"\x00\x53\x75\xa0\x01"

        def send(priority: int, body: bytes) -> None:
            header = b"\x00\x53\x70\xc0\x04\x02\x40\x50" + bytes((priority,))
            site.router.publish(Publication(device, Run("queue/a", "d", 1 | AMQP, header, [data + body]), [1]))

        for priority, body in ((4, b"1"), (5, b"2"), (9, b"3"), (4, b"4"), (7, b"5")):
            send(priority, body)
        site.settle()
        send(8, b"6")
        site.settle(QUEUE_LINGER_S)
        site.settle(QUEUE_LINGER_S)
        assert [body[-1:] for body in site.take("queue/a").got] == [b"3", b"6", b"5", b"2", b"1", b"4"]

    def test_unused_queue_is_forgotten(self) -> None:
        site, device = Site(), Device("u")
        site.send(device, "queue/a")
        site.send(device, "queue/full")
        site.send(device, "queue/ours")
        site.take("queue/a")
        site.take("queue/ours")
        log = site.router.queues["queue/a"].log
        site.settle(QUEUE_LINGER_S)
        site.settle(SMALL.queue_unused_s - 1)
        assert "queue/a" in site.router.queues
        site.settle(2)
        assert sorted(site.router.queues) == ["queue/full", "queue/ours"]
        assert site.count(NameKind.QUEUE) == 1
        assert dict(site.store.state.items("queue")).keys() == {"queue/full", "queue/ours"}
        assert all(info.name != "queue queue/a" for info in site.store.info().logs)
        site.send(device, "queue/a", b"again")
        again = site.take("queue/a")
        assert again.got == [b"again"]
        assert again.sequences == [1], "no number is given twice"
        assert site.router.queues["queue/a"].log == log, "a log that nobody has is used again"

    def test_occasionally_used_queue_remains(self) -> None:
        site = Site()
        for _ in range(5):
            site.send(Device(), "queue/a")
            site.take("queue/a")
            site.settle(SMALL.queue_unused_s * 0.9)
        assert "queue/a" in site.router.queues

    def test_unused_queue_is_forgotten_after_a_restart(self) -> None:
        site = Site()
        site.send(Device(), "queue/a")
        site.take("queue/a")
        site.settle(1)
        site.boot()
        site.settle(1)
        assert "queue/a" in site.router.queues
        site.settle(SMALL.queue_unused_s + 1)
        assert not list(site.router.queues)

    def test_browsed_queue_remains(self) -> None:
        site, device = Site(), Device()
        site.send(device, "queue/a")
        site.take("queue/a")
        browsing = site.router.subscriptions.subscribe(device, "queue/a", SubscribeOptions(browse=True))
        site.settle(QUEUE_LINGER_S)
        site.settle(SMALL.queue_unused_s + 1)
        assert "queue/a" in site.router.queues
        site.send(device, "queue/a", b"seen")
        browsing.pump()
        site.settle()
        assert device.got == [b"seen"]

    def test_queue_with_a_refused_message_is_forgotten(self) -> None:
        site = Site()
        site.router.publish(Publication(Device(), Run("queue/a", "d", 1, b"", [b"m"]), [1]))
        queues = site.router.queues
        assert "queue/a" in queues
        site.take("queue/a")
        site.settle(QUEUE_LINGER_S)
        site.settle(SMALL.queue_unused_s + 1)
        assert "queue/a" not in queues

    def test_tick_does_bounded_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.router.queues.QUEUES_CHECKED_MAX", 2)
        assert QUEUES_CHECKED_MAX > 2
        site = Site()
        for i in range(6):
            site.send(Device(), f"queue/{i}")
            site.take(f"queue/{i}")
        site.settle(QUEUE_LINGER_S)
        site.settle(QUEUE_LINGER_S)
        site.now += SMALL.queue_unused_s + 1
        site.router.tick()
        assert len(site.router.queues) == 4
        site.settle()
        assert len(site.router.queues) == 0
