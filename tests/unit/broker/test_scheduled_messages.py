"""Scheduled messages: kept until they are due by clocks that may be set, published once, refused with a reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from bridge.amqp_values import DescribedValue, Ubyte, Uint, Ulong, encode
from bridge.message import AMQP, Run
from edge.broker.limits import (
    SCHEDULED_AGAIN_S,
    SCHEDULED_AHEAD_MS_MAX,
    SCHEDULED_AT_ONCE,
    SCHEDULED_BYTES_MAX,
    SCHEDULED_MESSAGES_MAX,
    SCHEDULED_USER_SHARE,
)
from edge.broker.message.delivery_time import DeliveryTime
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.message.translation import read_header
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.logs import QUEUE_LOG
from edge.broker.router.router import Router
from edge.broker.router.scheduled_messages import KIND, ScheduledMessages, ScheduleFault, ScheduleRefused
from edge.broker.store.errors import StoreError
from tests.support.memory_store import MemoryStore

HOUR_MS = 3_600_000
BOOT_NS = 1_700_000_000_000_000_000
QUOTA_BYTES = 200
RULES = {
    "queue/#": AddressType.QUEUE,
    "topic/#": AddressType.TOPIC,
    "anycast/#": AddressType.ANYCAST,
    "multicast/#": AddressType.MULTICAST,
}


class Sender(Origin):
    """Origin that notes its answers."""

    def __init__(self, user: str = "") -> None:
        self.name, self.user = "sender", user
        self.answers: list[object] = []

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers += tokens

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers += [why] * len(tokens)


class Site:
    """A router with clocks that a test sets; it can be restarted."""

    def __init__(self, *, good: bool = True) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.now_s = 100.0
        self.wall_ns = BOOT_NS
        self.good = good
        self.rules = dict(RULES)
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.now_s)
        self.sender = Sender()
        self.start()

    def start(self) -> None:
        """Start with what the store has."""
        self.store.commits.listeners.clear()
        self.router = Router(
            self.store,
            AddressTable([AddressRule(*rule) for rule in self.rules.items()]),
            clock_ns=lambda: self.wall_ns,
            clock_good=lambda: self.good,
            flush_soon=lambda: None,
            policies={"queue/#": AddressPolicy(quota_bytes=QUOTA_BYTES, when_full=WhenFull.REJECT)},
            monotonic_s=lambda: self.now_s,
            soon=lambda _turn: None,
        )

    @property
    def schedule(self) -> ScheduledMessages:
        return self.router.scheduled

    def send(
        self,
        body: bytes,
        wait_ms: int,
        *,
        at_ms: int | None = None,
        address: str = "queue/a",
        ttl_ms: int | None = None,
        user: str = "",
        token: int = 1,
    ) -> None:
        header = b"" if ttl_ms is None else encode(DescribedValue(Ulong(0x70), [True, Ubyte(4), Uint(ttl_ms)]))
        run = Run(address, "sender", AMQP | 1, header, [body])
        self.sender.user = user
        self.schedule.add(self.sender, run, (token,), DeliveryTime("x", wait_ms, at_ms))

    def commit(self) -> None:
        self.router.flush()
        while self.posted:
            self.posted.popleft()()

    def after(self, seconds: float, *, wall_s: float | None = None) -> list[bytes]:
        """Let time pass, the wall clock by `wall_s`; return all delivered bodies."""
        self.now_s += seconds
        self.wall_ns += int((seconds if wall_s is None else wall_s) * 1e9)
        self.router.tick()
        self.commit()
        return self.delivered

    @property
    def runs(self) -> list[Run]:
        log = self.store.logs.find(f"{QUEUE_LOG}queue/a")
        return [] if log is None else [each.run for each in self.store.medium.kept(log)]

    @property
    def delivered(self) -> list[bytes]:
        """Bodies that the queue has on disk."""
        return [body for run in self.runs for body in run.bodies]

    @property
    def kept(self) -> int:
        """Number of scheduled messages on disk."""
        return sum(1 for _ in self.store.medium.items(KIND))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Let every commit fail."""
        self.store.failure = StoreError("no")
        yield
        self.store.failure = None


class TestDelivery:
    def test_message_is_acknowledged_on_disk_and_delivered_when_it_is_due(self) -> None:
        site = Site()
        site.send(b"m", HOUR_MS)
        assert (site.sender.answers, site.kept) == ([], 0)
        site.commit()
        assert (site.sender.answers, site.kept, len(site.schedule)) == ([1], 1, 1)
        assert site.after(3599) == []
        assert site.after(1) == [b"m"]
        assert (site.kept, len(site.schedule), site.schedule.bytes) == (0, 0, 0)
        assert site.after(HOUR_MS) == [b"m"]

    def test_messages_are_delivered_in_the_order_of_their_times(self) -> None:
        site = Site()
        for body, wait_ms in ((b"c", 3000), (b"a", 1000), (b"b", 2000), (b"d", 3000)):
            site.send(body, wait_ms)
        site.commit()
        assert site.after(10) == [b"a", b"b", b"c", b"d"]

    def test_many_due_messages_are_delivered_in_several_ticks(self) -> None:
        site = Site()
        for number in range(SCHEDULED_AT_ONCE + 1):
            site.send(b"", 1000, address="topic/a", token=number)
        site.commit()
        site.after(2)
        assert len(site.schedule) == 1
        site.after(0)
        assert len(site.schedule) == 0

    def test_time_to_live_goes_on_while_a_message_waits(self) -> None:
        site = Site()
        site.send(b"m", 10_000, ttl_ms=60_000)
        site.commit()
        site.after(25)  # late
        [run] = site.runs
        assert read_header(run.properties).ttl_ms == 35_000

    def test_message_that_expired_while_the_gateway_was_off_is_not_delivered_as_new(self) -> None:
        site = Site()
        site.send(b"m", 10_000, ttl_ms=60_000)
        site.commit()
        site.now_s, site.wall_ns = site.now_s + 600, site.wall_ns + int(600e9)
        site.start()
        site.after(0)
        [run] = site.runs
        assert ttl_ns(run, AddressPolicy()) == 0


class TestClocks:
    def test_restart_continues_the_wait(self) -> None:
        site = Site()
        site.send(b"m", HOUR_MS)
        site.commit()
        site.after(1800)
        site.start()
        assert site.after(1799) == []
        assert site.after(1) == [b"m"]

    def test_delay_starts_again_after_a_start_with_another_clock(self) -> None:
        """A machine without a clock does not know how long it was off."""
        site = Site(good=False)
        site.send(b"m", HOUR_MS)
        site.commit()
        site.now_s, site.wall_ns = 5.0, 0  # booted in 1970
        site.start()
        assert site.after(3599) == []
        assert site.after(1) == [b"m"]

    def test_setting_the_clock_makes_nothing_early(self) -> None:
        site = Site(good=False)
        site.wall_ns = 0
        site.start()
        site.send(b"m", HOUR_MS)
        site.commit()
        site.good = True
        assert site.after(1800, wall_s=1.7e9) == []
        assert site.after(1799) == []
        assert site.after(1) == [b"m"]

    def test_time_of_day_follows_a_clock_that_is_right(self) -> None:
        site = Site(good=False)
        site.send(b"m", HOUR_MS, at_ms=BOOT_NS // 1_000_000 + HOUR_MS)
        site.commit()
        site.good = True
        assert site.after(60, wall_s=60 + 1800) == []  # the clock was half an hour slow
        assert site.after(1739) == []
        assert site.after(1) == [b"m"]

    def test_time_of_day_is_not_believed_of_a_clock_that_became_wrong(self) -> None:
        site = Site()
        site.send(b"m", HOUR_MS, at_ms=BOOT_NS // 1_000_000 + HOUR_MS)
        site.commit()
        site.good = False
        assert site.after(60, wall_s=1e8) == []
        assert site.after(3540) == [b"m"]


class TestFailures:
    def test_message_of_a_failed_commit_is_refused_and_not_delivered(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        with site.failing():
            site.commit()
        assert site.sender.answers == [Refusal.STORE_FAILED]
        site.commit()
        assert (site.kept, len(site.schedule)) == (0, 0)
        assert site.after(10) == []

    def test_message_is_tried_again_when_the_commit_of_its_delivery_fails(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        with site.failing():
            assert site.after(2) == []
        assert site.kept == 1
        site.commit()
        assert site.kept == 1
        site.after(0)  # commits work again
        assert site.after(SCHEDULED_AGAIN_S) == [b"m"]
        assert site.kept == 0

    def test_message_waits_while_its_queue_is_full(self) -> None:
        site = Site()
        full, later = b"x" * QUOTA_BYTES, b"m"
        site.send(full, 1000)
        site.send(later, 2000)
        site.commit()
        assert site.after(3) == [full]
        [waiting] = site.schedule
        assert (waiting.refused, site.schedule.refused, site.kept) == (Refusal.FULL, 1, 1)
        site.router.reconfigure(site.router.addresses.table, {})
        assert site.after(SCHEDULED_AGAIN_S) == [full, later]

    def test_message_waits_while_its_address_keeps_no_messages(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        table = site.router.addresses.table
        site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.ANYCAST)]), {})
        assert site.after(2) == []
        assert site.schedule.refused == 1
        site.router.reconfigure(table, {})
        assert site.after(SCHEDULED_AGAIN_S) == [b"m"]

    def test_message_that_cannot_be_read_stays_in_the_store(self) -> None:
        site = Site()
        site.store.state.put(KIND, "1", b"damaged")
        site.commit()
        site.start()
        assert (len(site.schedule), site.kept) == (0, 1)


class TestRefusals:
    @staticmethod
    def fault_of(send: Callable[[], None]) -> ScheduleFault:
        with pytest.raises(ScheduleRefused) as caught:
            send()
        return caught.value.fault

    @pytest.mark.parametrize("address", ["anycast/a", "multicast/a"])
    def test_address_without_a_store_is_refused(self, address: str) -> None:
        assert self.fault_of(lambda: Site().send(b"m", 1000, address=address)) is ScheduleFault.DIRECT

    def test_message_that_expires_before_is_refused(self) -> None:
        site = Site()
        assert self.fault_of(lambda: site.send(b"m", 1000, ttl_ms=1000)) is ScheduleFault.EXPIRED
        site.send(b"m", 1000, ttl_ms=1001)

    def test_time_that_is_too_far_away_is_refused(self) -> None:
        site = Site()
        site.send(b"m", SCHEDULED_AHEAD_MS_MAX)
        assert self.fault_of(lambda: site.send(b"m", SCHEDULED_AHEAD_MS_MAX + 1)) is ScheduleFault.TOO_FAR

    def test_count_has_a_limit_and_a_user_a_share_of_it(self) -> None:
        site = Site()
        share = SCHEDULED_MESSAGES_MAX // SCHEDULED_USER_SHARE
        for _ in range(share):
            site.send(b"", 1000, address="topic/a", user="a")
        assert self.fault_of(lambda: site.send(b"", 1000, user="a")) is ScheduleFault.NO_ROOM
        for _ in range(SCHEDULED_MESSAGES_MAX - share):
            site.send(b"", 1000, address="topic/a", user="b")
        assert self.fault_of(lambda: site.send(b"", 1000, user="c")) is ScheduleFault.NO_ROOM

    def test_bytes_have_a_limit_and_a_user_a_share_of_it(self) -> None:
        site = Site()
        half = bytes(SCHEDULED_BYTES_MAX // SCHEDULED_USER_SHARE - len("topic/a"))
        site.send(half, 1000, address="topic/a", user="a")
        assert self.fault_of(lambda: site.send(b"", 1000, address="topic/a", user="a")) is ScheduleFault.NO_ROOM
        site.send(half, 1000, address="topic/a", user="b")
        assert self.fault_of(lambda: site.send(b"", 1000, address="topic/a")) is ScheduleFault.NO_ROOM

    def test_room_is_free_again_after_the_delivery(self) -> None:
        site = Site()
        half = bytes(SCHEDULED_BYTES_MAX // SCHEDULED_USER_SHARE - len("topic/a"))
        site.send(half, 1000, address="topic/a", user="a")
        site.commit()
        site.after(2)
        site.send(half, 1000, address="topic/a", user="a")

    def test_nothing_is_scheduled_while_the_card_is_full(self) -> None:
        site = Site()
        site.router.quotas.closed = True
        assert self.fault_of(lambda: site.send(b"m", 1000)) is ScheduleFault.NO_ROOM


class TestDeletion:
    def test_deleted_message_is_in_the_loss_ledger(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        [waiting] = site.schedule
        assert site.schedule.delete(waiting.number) is not None
        site.commit()
        assert site.after(10) == []
        [lost] = site.store.ledger.entries(0, 10)
        assert (lost.address, lost.messages, lost.reason) == ("queue/a", 1, "deleted")
        assert (site.kept, len(site.schedule)) == (0, 0)

    def test_message_that_is_not_there_or_under_way_is_not_deleted(self) -> None:
        site = Site()
        assert site.schedule.delete(7) is None
        site.send(b"m", 1000)
        [waiting] = site.schedule
        assert site.schedule.delete(waiting.number) is None, "not on disk yet"
        site.commit()
        site.now_s += 2
        site.wall_ns += int(2e9)
        site.schedule.tick(failing=False)
        assert site.schedule.delete(waiting.number) is None, "its delivery is being stored"
        site.commit()
        assert site.delivered == [b"m"]

    def test_numbers_are_not_used_again(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        [first] = site.schedule
        site.after(2)
        site.start()
        site.send(b"n", 1000)
        [second] = site.schedule
        assert second.number > first.number
