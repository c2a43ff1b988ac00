"""Quotas, reserves and floors: who may append, who is refused, whose oldest messages go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import Run
from edge.broker.addresses import AddressRule, AddressTable, AddressType
from edge.broker.configuration import AddressPolicy, WhenFull
from edge.broker.contract import Refusal, SubscribeOptions
from edge.broker.limits import EVICT_AHEAD_BYTES_MAX, FLOOR_HYSTERESIS_BYTES
from edge.broker.router import Router
from edge.broker.store.contract import LedgerEntry
from edge.broker.store.memory import MemoryStore


class Sender:
    """Numbers its messages and remembers what it was told, in order."""

    name = "sender"

    def __init__(self) -> None:
        self.told: list[tuple[int, Refusal | None]] = []
        self.credit: list[str] = []
        self.sent = 0

    def accepted(self, tokens: Sequence[int]) -> None:
        self.told += [(token, None) for token in tokens]

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.told += [(token, why) for token in tokens]

    def credit_changed(self, address: str) -> None:
        self.credit.append(address)

    @property
    def kept(self) -> int:
        return sum(why is None for _, why in self.told)


class Reader:
    name = "reader"
    credit = 0

    def deliver(self, subscription: object, stored: object) -> None:
        raise AssertionError("it has no credit")


class Site:
    def __init__(self, *, space: int | None = None, **policies: AddressPolicy) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 1000.0
        self.free = 1 << 40
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        rules = [AddressRule(f"{kind.value}/#", kind) for kind in AddressType]
        rules += [AddressRule(f"{name}/#", AddressType.QUEUE) for name in policies]
        self.router = Router(
            self.store,
            AddressTable(rules),
            clock_ns=lambda: int(self.now * 1e9),
            flush_soon=lambda: None,
            policies={f"{name}/#": policy for name, policy in policies.items()},
        )
        self.router.quotas.space_bytes = space
        self.router.quotas._free_bytes = lambda: self.free
        self.sender = Sender()

    def settle_down(self) -> None:
        for _ in range(8):
            self.now += 0.25
            self.router.tick()
            self.router.flush()
            while self.posted:
                self.posted.popleft()()

    def send(self, address: str, size: int = 100, count: int = 1) -> list[Refusal | None]:
        """Send one run and commit; what was said of it."""
        before = len(self.sender.told)
        tokens = range(self.sender.sent, self.sender.sent + count)
        self.sender.sent += count
        self.router.publish(self.sender, Run(address, "device", 1, b"", [b"x" * size] * count), tokens)
        self.settle_down()
        return [why for _, why in self.sender.told[before:]]

    def used(self, address: str) -> int:
        account = self.router.account(address)
        return account.used if account is not None else 0

    @property
    def ledger(self) -> list[LedgerEntry]:
        return list(self.store.losses(0, 1000))


def quota(size: int | None, when_full: WhenFull = WhenFull.REJECT, reserve: int = 0) -> AddressPolicy:
    return AddressPolicy(quota_bytes=size, reserve_bytes=reserve, when_full=when_full)


class TestReject:
    def test_up_to_the_byte_and_not_beyond(self) -> None:
        site = Site(queue=quota(1000))
        assert [site.send("queue/a") for _ in range(10)] == [[None]] * 10
        assert site.send("queue/a", size=1) == [Refusal.FULL]
        assert site.used("queue/a") == 1000
        account = site.router.account("queue/a")
        assert account is not None
        assert account.refused == 1
        assert site.router.figures.refused == 1

    def test_all_names_of_the_resource_share_it(self) -> None:
        site = Site(queue=quota(1000))
        assert site.send("queue/a", count=6) == [None] * 6
        assert site.send("queue/b", count=6) == [Refusal.FULL] * 6
        assert site.send("queue/b", count=4) == [None] * 4

    def test_room_comes_back_when_messages_are_consumed(self) -> None:
        site = Site(queue=quota(1000))
        site.send("queue/a", count=10)
        assert site.send("queue/a") == [Refusal.FULL]
        queue = site.router.queues["queue/a"]
        site.store.acknowledge(queue.cursor, 0, 9)
        site.settle_down()
        assert site.used("queue/a") == 0
        assert site.send("queue/a", count=10) == [None] * 10

    def test_amqp_senders_get_no_credit_and_hear_when_there_is_room(self) -> None:
        site = Site(queue=quota(1000))
        assert site.router.sender_credit(site.sender, "queue/a") > 0
        site.send("queue/a", count=10)
        assert site.router.sender_credit(site.sender, "queue/a") == 0
        site.settle_down()
        assert site.sender.credit == []
        site.store.acknowledge(site.router.queues["queue/a"].cursor, 0, 9)
        site.settle_down()
        assert site.sender.credit == ["queue/a"]
        assert site.router.sender_credit(site.sender, "queue/a") > 0

    def test_a_topic_refuses_only_what_it_would_keep(self) -> None:
        site = Site(topic=quota(300))
        assert site.send("topic/a", count=100) == [None] * 100
        site.router.subscribe(Reader(), "topic/a", SubscribeOptions(durable_name="reader"))
        assert site.send("topic/a", count=3) == [None] * 3
        assert site.send("topic/a") == [Refusal.FULL]
        site.router.publish(site.sender, Run("topic/a", "device", 0, b"", [b"qos 0"]), ())
        assert site.used("topic/a") == 300

    def test_a_new_quota_counts_for_what_is_there(self) -> None:
        site = Site(queue=quota(None))
        assert site.send("queue/a", count=20) == [None] * 20
        site.router.reconfigure(site.router.table, {"queue/#": quota(1000)})
        assert site.send("queue/a", size=1) == [Refusal.FULL]
        site.router.reconfigure(site.router.table, {})
        assert site.send("queue/a", count=20) == [None] * 20


class TestDropOldest:
    def test_the_oldest_make_room_and_the_ledger_says_so(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        for _ in range(25):
            assert site.send("queue/a") == [None]
        assert site.used("queue/a") <= 1000
        (entry,) = site.ledger
        kept = 25 - entry.messages
        assert (entry.reason, entry.first, entry.last) == ("evicted", 0, 24 - kept)
        assert entry.bytes == entry.messages * 100
        assert site.used("queue/a") == kept * 100

    def test_what_could_never_fit_is_refused(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        site.send("queue/a", count=5)
        assert site.send("queue/a", size=1001) == [Refusal.FULL]
        assert site.used("queue/a") == 500
        assert site.ledger == []

    def test_another_name_of_the_resource_gives_way(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        site.send("queue/a", count=10)
        assert site.send("queue/b", count=5) == [None] * 5
        assert site.used("queue/a") <= 1000
        assert {entry.address for entry in site.ledger} == {"queue/a"}

    def test_room_made_ahead_is_bounded(self) -> None:
        size = EVICT_AHEAD_BYTES_MAX * 200
        site = Site(queue=quota(size, WhenFull.DROP_OLDEST))
        body = EVICT_AHEAD_BYTES_MAX
        for _ in range(200):
            site.send("queue/a", size=body)
        assert site.ledger == []
        assert site.send("queue/a", size=body) == [None]
        assert sum(entry.bytes for entry in site.ledger) <= 2 * body


class TestSpace:
    def test_what_is_reserved_nobody_else_takes(self) -> None:
        site = Site(space=2000, events=quota(None, reserve=500), telemetry=quota(None))
        assert site.send("telemetry/a", count=15) == [None] * 15
        assert site.send("telemetry/a") == [Refusal.FULL]
        assert site.send("events/a", count=5) == [None] * 5
        assert site.send("events/a") == [Refusal.FULL], "the rest of the space is telemetry's by now"

    def test_telemetry_gives_way_to_itself_and_not_to_events(self) -> None:
        site = Site(space=2000, events=quota(None, reserve=500), telemetry=quota(None, WhenFull.DROP_OLDEST))
        for _ in range(100):
            assert site.send("telemetry/a") == [None]
        assert site.used("telemetry/a") <= 1500
        assert site.send("events/a", count=5) == [None] * 5
        assert {entry.address for entry in site.ledger} == {"telemetry/a"}

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["events/a", "telemetry/a", "telemetry/b"]), st.integers(1, 400), st.booleans())
        )
    )
    def test_never_more_than_the_space_and_never_less_than_the_reserve(
        self, steps: list[tuple[str, int, bool]]
    ) -> None:
        site = Site(space=2000, events=quota(700, reserve=500), telemetry=quota(None, WhenFull.DROP_OLDEST))
        for address, size, consume in steps:
            before = site.used("events/a")
            (answer,) = site.send(address, size=size)
            if address == "events/a" and before + size <= 500:
                assert answer is None
            if consume and (queue := site.router.queues.get(address)) is not None:
                end = site.store.bounds(queue.log)[1]
                site.store.acknowledge(queue.cursor, 0, end - 1)
                site.settle_down()
            assert site.used("events/a") <= 700
            assert site.used("events/a") + site.used("telemetry/a") <= 2000
        site.store.close()


class TestFloor:
    def test_at_the_floor_only_reserves_are_written(self, caplog: pytest.LogCaptureFixture) -> None:
        site = Site(events=quota(None, reserve=500), queue=quota(None), telemetry=quota(None, WhenFull.DROP_OLDEST))
        site.router.quotas.floor_bytes = 10 << 20
        assert site.send("telemetry/a", count=10) == [None] * 10
        site.free = (10 << 20) - 1
        site.settle_down()
        assert "below the floor of 10 MiB" in caplog.text
        assert site.send("queue/a") == [Refusal.FULL]
        assert site.send("events/a", count=5) == [None] * 5
        assert site.send("events/a") == [Refusal.FULL]
        assert site.send("telemetry/a", count=2) == [None] * 2, "what it gives up makes room"
        assert site.used("telemetry/a") <= 1000
        site.free = (10 << 20) + FLOOR_HYSTERESIS_BYTES - 1
        assert site.send("queue/a") == [Refusal.FULL]
        site.free += 1
        site.settle_down()
        assert site.send("queue/a") == [None]
        assert "above the floor" in caplog.text

    def test_answers_keep_their_order(self) -> None:
        site = Site(queue=quota(1000))
        tokens = [list(range(5)), list(range(5, 10)), [10], list(range(11, 13))]
        for part in tokens:
            size = 100 if part != [10] else 1
            site.router.publish(site.sender, Run("queue/a", "d", 1, b"", [b"x" * size] * len(part)), part)
        site.settle_down()
        assert [token for token, _ in site.sender.told] == list(range(13))
