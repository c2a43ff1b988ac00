"""Scheduled messages: kept until they are due by clocks that may be set, published once, refused with a reason."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pytest

from bridge.amqp_values import DescribedValue, Ubyte, Uint, Ulong, encode
from bridge.message import AMQP, Run
from edge.broker.limits import (
    SCHEDULED_AGAIN_S,
    SCHEDULED_AHEAD_MS_MAX,
    SCHEDULED_AT_ONCE,
    SCHEDULED_AT_ONCE_BYTES,
    SCHEDULED_BYTES_MAX,
    SCHEDULED_MESSAGES_MAX,
    SCHEDULED_SPACE_SHARE,
    SCHEDULED_TRIALS_MAX,
    SCHEDULED_USER_SHARE,
)
from edge.broker.message.delivery_time import DeliveryTime
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.message.translation import read_header
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.logs import QUEUE_LOG
from edge.broker.router.router import Router
from edge.broker.router.schedule_admission import ScheduleFault, ScheduleRefused
from edge.broker.router.scheduled_messages import CONTENT, KIND, ScheduledMessages
from edge.broker.store.errors import StoreError
from tests.support.memory_store import MemoryStore

HOUR_MS = 3_600_000
BOOT_NS = 1_700_000_000_000_000_000
QUOTA_BYTES = 200
FIRST_S, LONGEST_S = SCHEDULED_AGAIN_S
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
        self.schedules = True
        self.space_bytes: int | None = None
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
            schedules=self.schedules,
        )
        self.router.quotas.bound_space(self.space_bytes)

    @property
    def schedule(self) -> ScheduledMessages:
        return self.router.scheduled

    def send(
        self,
        body: bytes,
        wait_ms: int | None,
        *,
        at_ms: int | None = None,
        address: str = "queue/a",
        ttl_ms: int | None = None,
        user: str = "",
        device: str = "sender",
        token: int = 1,
    ) -> None:
        header = b"" if ttl_ms is None else encode(DescribedValue(Ulong(0x70), [True, Ubyte(4), Uint(ttl_ms)]))
        run = Run(address, device, AMQP | 1, header, [body])
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
        found = [sum(1 for _ in self.store.medium.items(kind)) for kind in (KIND, CONTENT)]
        assert found[0] == found[1]
        return found[0]

    @contextlib.contextmanager
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

    def test_large_due_messages_are_delivered_in_several_ticks(self) -> None:
        site = Site()
        for number in range(3):
            site.send(bytes(SCHEDULED_AT_ONCE_BYTES), 1000, address="topic/a", token=number)
        site.commit()
        for left in (2, 1, 0):
            site.after(2)
            assert len(site.schedule) == left

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

    def test_time_of_day_of_a_clock_that_is_set_back_a_little_is_not_early(self) -> None:
        site = Site()
        site.send(b"m", HOUR_MS, at_ms=BOOT_NS // 1_000_000 + HOUR_MS)
        site.commit()
        assert site.after(3600, wall_s=3598.5) == []
        assert site.after(1.5) == [b"m"]

    def test_wait_goes_on_over_a_restart_once_the_clock_is_right(self) -> None:
        site = Site(good=False)
        site.send(b"m", HOUR_MS)
        site.commit()
        site.good = True
        site.after(1200, wall_s=1e8)
        site.after(600)
        site.start()
        assert site.after(1799) == []
        assert site.after(1) == [b"m"]

    def test_wait_goes_on_if_the_clock_became_right_during_a_restart(self) -> None:
        site = Site(good=False)
        site.send(b"m", HOUR_MS)
        site.commit()
        site.good = True
        site.start()
        site.after(1200)
        site.start()
        assert site.after(2399) == []
        assert site.after(1) == [b"m"]

    def test_changes_of_the_clock_cost_no_memory(self) -> None:
        site = Site()
        for _ in range(3):
            site.send(b"m", HOUR_MS)
        site.commit()
        for change in range(20):
            site.good = not site.good
            site.after(1, wall_s=10 * change)
        assert len(site.schedule._due) == 3

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
        site.after(0)  # commits work again
        assert site.kept == 1
        assert site.after(FIRST_S) == [b"m"]
        assert site.kept == 0

    def test_publication_that_raises_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        with monkeypatch.context() as patched:
            patched.setattr(Router, "publish", lambda *_: 1 / 0)
            assert site.after(2) == []
        assert site.kept == 1
        assert site.after(FIRST_S) == [b"m"]

    @pytest.mark.parametrize("fails", [False, True])
    def test_publication_that_raises_after_it_was_stored_is_stored_once(
        self, monkeypatch: pytest.MonkeyPatch, fails: bool
    ) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        publish = Router.publish

        def raising(router: Router, batch: Publication) -> None:
            publish(router, batch)
            raise ArithmeticError

        with monkeypatch.context() as patched, site.failing() if fails else contextlib.nullcontext():
            patched.setattr(Router, "publish", raising)
            assert site.after(2) == ([] if fails else [b"m"])
        site.after(0)
        assert site.after(10 * FIRST_S) == [b"m"]
        assert (site.kept, len(site.schedule)) == (0, 0)

    def test_message_that_cannot_be_read_now_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.send(b"n", 1000, address="queue/b")
        site.commit()

        def broken(_kind: str, _key: str) -> bytes:
            raise StoreError("a bad page")

        with monkeypatch.context() as patched:
            patched.setattr(site.store.medium, "value", broken)
            site.after(2)
        assert (site.schedule.refused, site.kept) == (2, 2)
        assert site.after(FIRST_S) == [b"m"]
        assert site.kept == 0

    def test_message_that_cannot_be_read_at_the_start_stays_in_the_store(self) -> None:
        site = Site()
        site.store.state.put(KIND, "1", b"damaged")
        site.store.state.put(CONTENT, "1", b"damaged")
        site.commit()
        site.start()
        assert (len(site.schedule), site.kept) == (0, 1)


class TestRefusingAddresses:
    def test_message_waits_while_its_queue_is_full(self) -> None:
        site = Site()
        full, later = b"x" * QUOTA_BYTES, b"m"
        site.send(full, 1000)
        site.send(later, 2000)
        site.commit()
        assert site.after(3) == [full]
        site.after(0)  # it is tried again, as its address took one
        [waiting] = site.schedule
        assert (waiting.refused, site.schedule.refused, site.kept) == (Refusal.FULL, 1, 1)
        site.router.reconfigure(site.router.addresses.table, {})
        assert site.after(0) == [full, later]

    def test_refusing_address_is_tried_with_one_message_after_waits_that_double(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = Site()
        tried: list[bytes] = []
        publish = Router.publish
        monkeypatch.setattr(
            Router, "publish", lambda router, batch: (tried.extend(batch.run.bodies), publish(router, batch))[1]
        )
        for number in range(50):
            site.send(b"%03d" % number * QUOTA_BYTES, 1000)
        site.commit()
        began_s, times = site.now_s, list[float]()
        while site.now_s < began_s + 2000:
            count = len(tried)
            site.after(1)
            if len(tried) > count:
                assert len(tried) == count + 1
                times.append(site.now_s)
        waits = [after - before for before, after in itertools.pairwise(times)]
        assert waits[:6] == [FIRST_S * 2**each for each in range(6)]
        assert max(waits) == LONGEST_S
        assert (site.schedule.refused, site.kept) == (50, 50)
        site.router.reconfigure(site.router.addresses.table, {})
        site.after(0)
        assert (site.kept, site.schedule.refused) == (0, 0)
        assert site.delivered == [b"%03d" % number * QUOTA_BYTES for number in range(50)]

    def test_all_messages_of_an_address_follow_the_first_that_it_takes(self) -> None:
        site = Site()
        rules = {"queue/#": AddressPolicy(quota_bytes=1, when_full=WhenFull.REJECT)}
        site.router.reconfigure(site.router.addresses.table, rules)
        for number in range(5):
            site.send(b"%d" % number * 10, 1000)
        site.commit()
        assert site.after(2) == []
        site.router.addresses.configure(site.router.addresses.table, {})
        site.router.quotas.configure({})
        assert len(site.after(FIRST_S)) == 1
        assert len(site.after(0)) == 5

    def test_message_that_never_fits_holds_up_no_other(self) -> None:
        site = Site()
        site.send(b"x" * 2 * QUOTA_BYTES, 1000)
        for number in range(20):
            site.send(b"%d" % number, 1000)
        site.commit()
        site.after(2)
        for _ in range(3):
            site.after(2 * FIRST_S)
        assert site.after(0) == [b"%d" % number for number in range(20)]
        assert (site.schedule.refused, site.kept) == (1, 1)

    def test_unreadable_message_of_a_full_address_holds_up_no_other(self) -> None:
        site = Site()
        rules = {"queue/#": AddressPolicy(quota_bytes=1, when_full=WhenFull.REJECT)}
        site.router.reconfigure(site.router.addresses.table, rules)
        for number in range(3):
            site.send(b"%d" % number * 10, 1000)
        site.commit()
        site.after(2)
        assert site.schedule.refused == 3
        first = next(iter(site.schedule)).number
        site.store.state.delete(CONTENT, f"{first:016x}")
        site.commit()
        site.router.addresses.configure(site.router.addresses.table, {})
        site.router.quotas.configure({})
        for _ in range(3):
            site.after(2 * FIRST_S)
        assert site.delivered == [b"1" * 10, b"2" * 10]
        assert site.schedule.refused == 1

    @pytest.mark.parametrize("count", [1, 3])
    def test_held_messages_wait_on_when_the_clock_changes(self, count: int) -> None:
        site = Site()
        for _ in range(count):
            site.send(b"x" * 2 * QUOTA_BYTES, 1000)
        site.commit()
        site.after(2)
        site.good = False
        site.after(1)
        site.good = True
        site.after(1, wall_s=100)
        assert site.schedule.refused == count
        site.router.reconfigure(site.router.addresses.table, {})
        assert len(site.after(0)) == count

    def test_room_of_the_space_is_counted_once_while_a_message_moves(self) -> None:
        site = Site()
        site.space_bytes = 4 * QUOTA_BYTES
        site.start()
        body = b"x" * (QUOTA_BYTES // 2 - len("queue/a"))
        site.send(body, 1000)
        site.commit()
        site.router.quotas.bound_space(QUOTA_BYTES // 2)
        assert site.after(2) == [body]

    def test_refusing_addresses_do_not_delay_others(self) -> None:
        site = Site()
        for number in range(3 * SCHEDULED_TRIALS_MAX):
            site.send(b"x" * 2 * QUOTA_BYTES, 1000, address=f"queue/full{number}")
        site.commit()
        site.after(2)
        site.send(b"m", 1)
        site.commit()
        assert site.after(FIRST_S) == [b"m"]

    def test_message_waits_while_its_address_keeps_no_messages(self) -> None:
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        table = site.router.addresses.table
        site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.ANYCAST)]), {})
        assert site.after(2) == []
        assert site.schedule.refused == 1
        site.router.reconfigure(table, {})
        assert site.after(0) == [b"m"]

    def test_message_for_a_queue_waits_while_its_address_is_a_topic(self) -> None:
        """A topic without a subscriber would drop what the sender was promised to be kept."""
        site = Site()
        site.send(b"m", 1000)
        site.commit()
        table = site.router.addresses.table
        site.router.reconfigure(AddressTable([AddressRule("other", AddressType.QUEUE)]), {})
        site.after(2)
        assert (site.schedule.refused, site.kept) == (1, 1)
        site.start()
        site.router.reconfigure(table, {})
        assert site.after(2) == [b"m"]

    def test_message_to_a_topic_without_a_subscriber_is_dropped_as_always(self) -> None:
        site = Site()
        site.send(b"m", 1000, address="topic/a")
        site.commit()
        site.after(2)
        assert (site.kept, site.router.figures.unrouted) == (0, 1)

    def test_held_message_is_deleted(self) -> None:
        site = Site()
        for number in range(3):
            site.send(b"%d" % number * 2 * QUOTA_BYTES, 1000)
        site.commit()
        site.after(2)
        first, _, last = (each.number for each in site.schedule)
        assert site.schedule.delete([first, last])[0] == 2
        site.commit()
        assert (site.schedule.refused, site.kept) == (1, 1)
        site.router.reconfigure(site.router.addresses.table, {})
        assert site.after(0) == [b"1" * 2 * QUOTA_BYTES]


class TestRefusals:
    @staticmethod
    def fault_of(send: Callable[[], None]) -> ScheduleFault:
        with pytest.raises(ScheduleRefused) as caught:
            send()
        return caught.value.fault

    @pytest.mark.parametrize("address", ["anycast/a", "multicast/a", "$SYS/a", f"temp/{'0' * 32}", "own/a"])
    def test_address_that_keeps_no_messages_of_clients_is_refused(self, address: str) -> None:
        site = Site()
        site.router.routes.reserve("own/", Sender())
        assert self.fault_of(lambda: site.send(b"m", 1000, address=address)) is ScheduleFault.ADDRESS

    def test_router_that_does_not_schedule_refuses(self) -> None:
        site = Site()
        site.schedules = False
        site.start()
        assert self.fault_of(lambda: site.send(b"m", 1000)) is ScheduleFault.UNSUPPORTED

    def test_time_of_day_without_any_clock_is_refused(self) -> None:
        site = Site(good=False)
        assert self.fault_of(lambda: site.send(b"m", None, at_ms=1)) is ScheduleFault.CLOCK

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
            site.send(b"", 1000, address="topic/a", device="b")
        assert self.fault_of(lambda: site.send(b"", 1000, device="b")) is ScheduleFault.NO_ROOM, "without a user"
        assert self.fault_of(lambda: site.send(b"", 1000, user="c")) is ScheduleFault.NO_ROOM

    def test_bytes_have_a_limit_and_a_user_a_share_of_it(self) -> None:
        site = Site()
        half = bytes(SCHEDULED_BYTES_MAX // SCHEDULED_USER_SHARE - len("topic/a"))
        site.send(half, 1000, address="topic/a", user="a")
        assert self.fault_of(lambda: site.send(b"", 1000, address="topic/a", user="a")) is ScheduleFault.NO_ROOM
        site.send(half, 1000, address="topic/a", user="b")
        assert self.fault_of(lambda: site.send(b"", 1000, address="topic/a")) is ScheduleFault.NO_ROOM

    def test_bytes_are_a_part_of_the_quota_of_the_space(self) -> None:
        site = Site()
        site.space_bytes = 8_000
        site.start()
        most = 8_000 // SCHEDULED_SPACE_SHARE
        size = len("topic/a") + most // SCHEDULED_USER_SHARE
        assert self.fault_of(lambda: site.send(bytes(size), 1000, address="topic/a")) is ScheduleFault.NO_ROOM
        for user in "ab":
            site.send(bytes(size - 2 * len("topic/a")), 1000, address="topic/a", user=user)
        site.commit()
        site.router.quotas.tick()
        assert site.router.quotas.shared == 8_000 - site.schedule.bytes

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
        assert site.schedule.delete([waiting.number])[0] == 1
        site.commit()
        assert site.after(10) == []
        [lost] = site.store.ledger.entries(0, 10)
        assert (lost.address, lost.messages, lost.reason) == ("$scheduled/queue/a", 1, "deleted")
        assert (site.kept, len(site.schedule)) == (0, 0)

    def test_message_that_is_not_there_or_under_way_is_not_deleted(self) -> None:
        site = Site()
        assert site.schedule.delete([7]) == (0, None)
        site.send(b"m", 1000)
        [waiting] = site.schedule
        assert site.schedule.delete([waiting.number]) == (0, None), "not on disk yet"
        site.commit()
        site.now_s += 2
        site.wall_ns += int(2e9)
        site.schedule.tick(failing=False)
        assert site.schedule.delete([waiting.number]) == (0, None), "its delivery is being stored"
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
