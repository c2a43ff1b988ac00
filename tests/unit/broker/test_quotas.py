"""Quotas, reserves and floors: who may append, who is refused, and which oldest messages are dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import Run
from edge.broker.limits import (
    EVICT_AHEAD_BYTES_MAX,
    EVICT_AHEAD_SHARE,
    FLOOR_HYSTERESIS_BYTES,
    YIELDING_LOGS_MAX,
)
from edge.broker.model import interfaces
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Refusal, SubscribeOptions
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError
from edge.broker.store.records import LedgerEntry
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer


class Sender(interfaces.Origin):
    """Sender that numbers its messages and records its answers in order."""

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


class Reader(RunConsumer):
    name = "reader"
    credit = 0

    def take(self, subscription: object, stored: object) -> None:
        raise AssertionError("it has no credit")


class Site:
    def __init__(self, *, space: int | None = None, **policies: AddressPolicy) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now = 1000.0
        self.free = 1 << 40
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now)
        rules = [AddressRule(f"{kind.value}/#", kind) for kind in AddressType]
        rules += [AddressRule(f"{name}/#", AddressType.QUEUE) for name in policies]
        self.policies = {f"{name}/#": policy for name, policy in policies.items()}
        self.rules, self.space = rules, space
        self.start()
        self.sender = Sender()

    def start(self, rules: Sequence[AddressRule] | None = None) -> None:
        """Start a process over the content of the store."""
        self.store.commits.listeners.clear()
        self.router = Router(
            self.store,
            AddressTable(rules or self.rules),
            clock_ns=lambda: int(self.now * 1e9),
            flush_soon=lambda: None,
            policies=self.policies,
        )
        self.router.quotas.bound_space(self.space)
        self.router.quotas._free_bytes = lambda: self.free

    def settle_down(self) -> None:
        for _ in range(8):
            self.now += 0.25
            self.router.tick()
            self.router.flush()
            while self.posted:
                self.posted.popleft()()

    def send(self, address: str, size: int = 100, count: int = 1) -> list[Refusal | None]:
        """Send one run and commit; return the refusal of each message, or None."""
        before = len(self.sender.told)
        tokens = range(self.sender.sent, self.sender.sent + count)
        self.sender.sent += count
        self.router.publish(Publication(self.sender, Run(address, "device", 1, b"", [b"x" * size] * count), tokens))
        self.settle_down()
        return [why for _, why in self.sender.told[before:]]

    def used(self, address: str) -> int:
        account = self.router.routes.account(address)
        return account.used if account is not None else 0

    @property
    def ledger(self) -> list[LedgerEntry]:
        return list(self.store.ledger.entries(0, 1000))


def quota(
    size: int | None, when_full: WhenFull = WhenFull.REJECT, reserve: int = 0, priority: int = 4
) -> AddressPolicy:
    return AddressPolicy(quota_bytes=size, reserve_bytes=reserve, when_full=when_full, priority=priority)


DROP, THIN = WhenFull.DROP_OLDEST, WhenFull.THIN


class TestStart:
    def test_stored_messages_count_before_the_first_sender(self) -> None:
        site = Site(queue=quota(1000))
        site.send("queue/a", count=6)
        site.send("queue/b", count=3)
        site.start()
        assert {room.address: room.used for room in site.router.quotas.usage()} == {"queue/#": 900}
        assert site.send("queue/c", count=2) == [Refusal.FULL] * 2
        assert site.send("queue/c", count=1) == [None]

    def test_topics_count_and_other_types_do_not(self) -> None:
        site = Site(queue=quota(None))
        site.router.subscriptions.subscribe(Reader(), "topic/#", SubscribeOptions(durable_name="kept"))
        site.send("topic/a", count=2)
        site.send("queue/a", count=3)
        site.start([AddressRule("topic/#", AddressType.TOPIC), AddressRule("queue/#", AddressType.ANYCAST)])
        assert {room.address: room.used for room in site.router.quotas.usage()} == {"topic/#": 200}


class TestReject:
    def test_limit_is_exact_to_the_byte(self) -> None:
        site = Site(queue=quota(1000))
        assert [site.send("queue/a") for _ in range(10)] == [[None]] * 10
        assert site.send("queue/a", size=1) == [Refusal.FULL]
        assert site.used("queue/a") == 1000
        account = site.router.routes.account("queue/a")
        assert account is not None
        assert account.refused == 1
        assert site.router.figures.refused == 1

    def test_all_names_of_the_resource_share_the_quota(self) -> None:
        site = Site(queue=quota(1000))
        assert site.send("queue/a", count=6) == [None] * 6
        assert site.send("queue/b", count=6) == [Refusal.FULL] * 6
        assert site.send("queue/b", count=4) == [None] * 4

    def test_consumed_messages_free_their_quota(self) -> None:
        site = Site(queue=quota(1000))
        site.send("queue/a", count=10)
        assert site.send("queue/a") == [Refusal.FULL]
        queue = site.router.queues["queue/a"]
        site.store.cursors.acknowledge(queue.cursor, 0, 9)
        site.settle_down()
        assert site.used("queue/a") == 0
        assert site.send("queue/a", count=10) == [None] * 10

    def test_amqp_senders_without_room_get_no_credit_and_resume(self) -> None:
        site = Site(queue=quota(1000))
        assert site.router.credit.of(site.sender, "queue/a") > 0
        site.send("queue/a", count=10)
        assert site.router.credit.of(site.sender, "queue/a") == 0
        site.settle_down()
        assert site.sender.credit == []
        site.store.cursors.acknowledge(site.router.queues["queue/a"].cursor, 0, 9)
        site.settle_down()
        assert site.sender.credit == ["queue/a"]
        assert site.router.credit.of(site.sender, "queue/a") > 0

    def test_topic_refuses_only_what_it_would_store(self) -> None:
        site = Site(topic=quota(300))
        assert site.send("topic/a", count=100) == [None] * 100
        site.router.subscriptions.subscribe(Reader(), "topic/a", SubscribeOptions(durable_name="reader"))
        assert site.send("topic/a", count=3) == [None] * 3
        assert site.send("topic/a") == [Refusal.FULL]
        site.router.publish(Publication(site.sender, Run("topic/a", "device", 0, b"", [b"qos 0"]), ()))
        assert site.used("topic/a") == 300

    def test_new_quota_applies_to_stored_messages(self) -> None:
        site = Site(queue=quota(None))
        assert site.send("queue/a", count=20) == [None] * 20
        site.router.reconfigure(site.router.addresses.table, {"queue/#": quota(1000)})
        assert site.send("queue/a", size=1) == [Refusal.FULL]
        site.router.reconfigure(site.router.addresses.table, {})
        assert site.send("queue/a", count=20) == [None] * 20


class TestDropOldest:
    def test_oldest_messages_are_dropped_and_recorded(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        for _ in range(25):
            assert site.send("queue/a") == [None]
        assert site.used("queue/a") <= 1000
        (entry,) = site.ledger
        kept = 25 - entry.messages
        assert (entry.reason, entry.first, entry.last) == ("evicted", 0, 24 - kept)
        assert entry.bytes == entry.messages * 100
        assert site.used("queue/a") == kept * 100

    def test_message_larger_than_the_quota_is_refused(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        site.send("queue/a", count=5)
        assert site.send("queue/a", size=1001) == [Refusal.FULL]
        assert site.used("queue/a") == 500
        assert site.ledger == []

    def test_other_name_of_the_resource_is_evicted(self) -> None:
        site = Site(queue=quota(1000, WhenFull.DROP_OLDEST))
        site.send("queue/a", count=10)
        assert site.send("queue/b", count=5) == [None] * 5
        assert site.used("queue/a") <= 1000
        assert {entry.address for entry in site.ledger} == {"queue/a"}

    def test_eviction_ahead_is_bounded(self) -> None:
        size = EVICT_AHEAD_BYTES_MAX * 200
        site = Site(queue=quota(size, WhenFull.DROP_OLDEST))
        body = EVICT_AHEAD_BYTES_MAX
        for _ in range(200):
            site.send("queue/a", size=body)
        assert site.ledger == []
        assert site.send("queue/a", size=body) == [None]
        assert sum(entry.bytes for entry in site.ledger) <= 2 * body


class TestSpace:
    def test_reserve_is_not_available_to_others(self) -> None:
        site = Site(space=2000, events=quota(None, reserve=500), telemetry=quota(None))
        assert site.send("telemetry/a", count=15) == [None] * 15
        assert site.send("telemetry/a") == [Refusal.FULL]
        assert site.send("events/a", count=5) == [None] * 5
        assert site.send("events/a") == [Refusal.FULL], "the rest of the space is telemetry's by now"

    def test_telemetry_evicts_itself_and_not_events(self) -> None:
        site = Site(space=2000, events=quota(None, reserve=500), telemetry=quota(None, WhenFull.DROP_OLDEST))
        for _ in range(100):
            assert site.send("telemetry/a") == [None]
        assert site.used("telemetry/a") <= 1500
        assert site.send("events/a", count=5) == [None] * 5
        assert {entry.address for entry in site.ledger} == {"telemetry/a"}

    def test_queue_under_a_new_rule_counts_once(self) -> None:
        site = Site(space=2000, events=quota(None))
        assert site.send("events/a", count=12) == [None] * 12
        rules = [AddressRule("events/#", AddressType.QUEUE), AddressRule("events/a", AddressType.QUEUE)]
        site.router.reconfigure(AddressTable(rules), {"events/#": quota(None), "events/a": quota(None)})
        assert site.send("events/a", count=8) == [None] * 8
        assert {room.address: room.used for room in site.router.quotas.usage()} == {"events/#": 0, "events/a": 2000}

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["events/a", "telemetry/a", "telemetry/b"]), st.integers(1, 400), st.booleans())
        )
    )
    def test_space_is_an_upper_and_the_reserve_a_lower_bound(self, steps: list[tuple[str, int, bool]]) -> None:
        site = Site(space=2000, events=quota(700, reserve=500), telemetry=quota(None, WhenFull.DROP_OLDEST))
        for address, size, consume in steps:
            before = site.used("events/a")
            (answer,) = site.send(address, size=size)
            if address == "events/a" and before + size <= 500:
                assert answer is None
            if consume and (queue := site.router.queues.get(address)) is not None:
                end = site.store.logs.bounds(queue.log)[1]
                site.store.cursors.acknowledge(queue.cursor, 0, end - 1)
                site.settle_down()
            assert site.used("events/a") <= 700
            assert site.used("events/a") + site.used("telemetry/a") <= 2000
        site.store.close()


class TestEvictionOrder:
    """Order in which messages give way when the space or the card is full."""

    def test_events_continue_while_telemetry_is_evicted_down_to_its_reserve(self) -> None:
        site = Site(space=2000, events=quota(None, reserve=500), telemetry=quota(None, DROP, reserve=330))
        assert site.send("telemetry/a", count=15) == [None] * 15
        sent = 0
        while site.send("events/a") == [None]:
            sent += 1
            assert site.used("telemetry/a") + site.used("events/a") <= 2000
        assert sent == 16
        assert site.used("telemetry/a") == 400, "not one message more than its reserve leaves"
        (entry,) = site.ledger
        assert (entry.address, entry.reason, entry.first, entry.last) == ("telemetry/a", "evicted", 0, 10)

    def test_thinning_precedes_dropping_and_low_priority_precedes_high(self) -> None:
        site = Site(
            space=4000,
            alarms=quota(None),
            debug=quota(None, THIN, priority=0),
            readings=quota(None, THIN, priority=9),
            pictures=quota(None, DROP, priority=0),
            logs=quota(None, DROP, priority=1),
        )
        addresses = ["debug/a", "readings/a", "pictures/a", "logs/a"]
        for address in addresses:
            assert site.send(address, count=10) == [None] * 10
        emptied = []
        for _ in range(40):
            assert site.send("alarms/a") == [None]
            emptied += [address for address in addresses if site.used(address) == 0 and address not in emptied]
        assert emptied == addresses
        assert site.send("alarms/a") == [Refusal.FULL]

    def test_own_and_lower_ranks_are_not_evicted(self) -> None:
        site = Site(
            space=2000,
            one=quota(None, DROP),
            two=quota(None, DROP),
            low=quota(None, DROP, priority=3),
            thin=quota(None, THIN, priority=9),
        )
        assert site.send("one/a", count=10) == [None] * 10
        assert site.send("two/a", count=10) == [None] * 10
        assert site.send("low/a") == [Refusal.FULL]
        assert site.send("thin/a") == [Refusal.FULL]
        assert site.send("two/a") == [None]
        assert site.used("one/a") == 1000
        assert {entry.address for entry in site.ledger} == {"two/a"}

    def test_address_that_rejects_is_never_evicted(self) -> None:
        site = Site(space=1000, low=quota(None, priority=0), high=quota(None, priority=9))
        assert site.send("low/a", count=10) == [None] * 10
        assert site.send("high/a") == [Refusal.FULL]
        assert site.ledger == []

    def test_own_quota_evicts_only_its_own_messages(self) -> None:
        site = Site(space=5000, events=quota(500), telemetry=quota(None, DROP))
        site.send("telemetry/a", count=10)
        assert site.send("events/a", count=5) == [None] * 5
        assert site.send("events/a") == [Refusal.FULL]
        assert site.used("telemetry/a") == 1000

    def test_sender_has_credit_while_others_can_be_evicted(self) -> None:
        site = Site(space=2000, events=quota(None), telemetry=quota(None, DROP, reserve=1000))
        assert site.send("telemetry/a", count=20) == [None] * 20
        assert site.router.credit.of(site.sender, "events/a") > 0
        assert site.send("events/a", count=10) == [None] * 10
        assert site.router.credit.of(site.sender, "events/a") == 0

    def test_logs_evicted_at_once_are_bounded(self) -> None:
        site = Site(space=10_000, events=quota(None), telemetry=quota(None, DROP))
        for number in range(100):
            assert site.send(f"telemetry/{number}") == [None]
        assert site.send("events/a", size=100 * YIELDING_LOGS_MAX + 1) == [Refusal.FULL]
        assert site.send("events/a", size=100 * YIELDING_LOGS_MAX) == [None]
        assert len(site.ledger) == YIELDING_LOGS_MAX

    def test_eviction_at_the_floor_frees_only_what_is_needed(self) -> None:
        site = Site(events=quota(None), telemetry=quota(None, DROP, reserve=200))
        site.router.quotas.keep_free(10 << 20)
        assert site.send("telemetry/a", count=200) == [None] * 200
        site.free = 0
        site.settle_down()
        for _ in range(100):
            assert site.send("events/a") == [None]
        lost = sum(entry.bytes for entry in site.ledger)
        ahead = 20_000 // EVICT_AHEAD_SHARE
        assert 10_000 <= lost <= 10_000 + ahead + 100
        while site.send("events/a") == [None]:
            pass
        assert site.used("telemetry/a") == 200

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from(["events", "debug", "logs", "alarms"]), st.integers(1, 300)), max_size=60),
        st.integers(0, 9),
    )
    def test_reserves_hold_and_the_ledger_is_exact(self, steps: list[tuple[str, int]], priority: int) -> None:
        reserves = {"events": 500, "debug": 100, "logs": 300, "alarms": 0}
        site = Site(
            space=2000,
            events=quota(None, reserve=500),
            debug=quota(None, THIN, reserve=100, priority=priority),
            logs=quota(700, DROP, reserve=300),
            alarms=quota(None, priority=9),
        )
        sent = dict.fromkeys(reserves, 0)
        for name, size in steps:
            before = {name: site.used(f"{name}/a") for name in reserves}
            if site.send(f"{name}/a", size=size) == [None]:
                sent[name] += size
            else:
                assert before[name] + size > reserves[name]
            after = {name: site.used(f"{name}/a") for name in reserves}
            for other in reserves.keys() - {name}:
                assert after[other] >= min(before[other], reserves[other])
            assert sum(after.values()) <= 2000 + 2 * 300, "less than a message beyond for each of the two that give way"
            gone = dict.fromkeys(reserves, 0)
            for entry in site.ledger:
                gone[entry.address.removesuffix("/a")] += entry.bytes
            assert {name: sent[name] - gone[name] for name in reserves} == after
        site.store.close()


class TestFloor:
    def test_only_reserves_are_written_at_the_floor(self, caplog: pytest.LogCaptureFixture) -> None:
        site = Site(
            events=quota(None, reserve=500), queue=quota(None), telemetry=quota(None, WhenFull.DROP_OLDEST, 1000)
        )
        site.router.quotas.keep_free(10 << 20)
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

    def test_eviction_in_a_failed_commit_frees_no_room(self) -> None:
        """A failed commit frees no space. At the floor each new byte replaces an old one."""
        site = Site(telemetry=quota(None, WhenFull.DROP_OLDEST))
        site.router.quotas.keep_free(10 << 20)
        for _ in range(2 * EVICT_AHEAD_SHARE):
            assert site.send("telemetry/a", size=1000) == [None]
        used = site.used("telemetry/a")
        site.free = (10 << 20) - 1
        site.settle_down()
        site.store.failure = StoreError("no")
        assert site.send("telemetry/a", size=1000) == [Refusal.STORE_FAILED]
        site.store.failure = None
        site.settle_down()
        assert site.send("telemetry/a", size=1000) == [None]
        assert site.used("telemetry/a") <= used

    def test_answers_keep_their_order(self) -> None:
        site = Site(queue=quota(1000))
        tokens = [list(range(5)), list(range(5, 10)), [10], list(range(11, 13))]
        for part in tokens:
            size = 100 if part != [10] else 1
            site.router.publish(Publication(site.sender, Run("queue/a", "d", 1, b"", [b"x" * size] * len(part)), part))
        site.settle_down()
        assert [token for token, _ in site.sender.told] == list(range(13))
