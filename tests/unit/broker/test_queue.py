"""Queues with selectors, priorities and groups: no message is lost, delivered twice or scanned twice, and no consumer
blocks another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

import pytest

from bridge.amqp_values import DescribedValue, Ubyte, Uint, Ulong, encode
from bridge.message import AMQP, GROUPED, Run, Stored
from edge.broker.delivery import priorities, queue, view
from edge.broker.delivery.message_groups import bucket_of
from edge.broker.delivery.pattern import PatternSubscription
from edge.broker.delivery.queue import QueueOrder
from edge.broker.limits import PATTERN_SLICE_S, RETURNED_WAIT_S
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.model.ranges import Ranges
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from tests.support.router_site import NS_PER_S, RecordingConsumer, RouterSite, SilentOrigin, bodies_of
from tests.unit.broker.selecting_consumer import SelectingConsumer, attach, detach


def header(priority: int | None = None, ttl_ms: int | None = None) -> bytes:
    fields = [True, None if priority is None else Ubyte(priority), None if ttl_ms is None else Uint(ttl_ms)]
    return encode(DescribedValue(Ulong(0x70), fields))


def body(text: str, group: str | None = None) -> bytes:
    properties = b"" if group is None else encode(DescribedValue(Ulong(0x73), [None] * 10 + [group]))
    return properties + encode(DescribedValue(Ulong(0x77), text))


def values(consumer: RecordingConsumer) -> list[str]:
    """Return the bodies of `body`, without sections."""
    return [name[name.rindex("\xa1") + 2 :] for name in bodies_of(consumer)]


class TestReleasedMessages:
    """Messages that one consumer returned; each continues separately through the queue."""

    def test_message_goes_first_to_another_consumer_that_selects_it(self) -> None:
        site = RouterSite()
        first = attach(site, SelectingConsumer("a", name="first"))
        site.send("queue/a", b"a")
        second = attach(site, SelectingConsumer("a", name="second", credit=0))
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert bodies_of(first) == ["a"]
        second.credit = 1
        second.joined.pump()
        site.settle_down()
        assert bodies_of(second) == ["a"]
        second.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert bodies_of(first) == ["a", "a"]

    def test_message_returns_at_once_where_no_other_consumer_selects_it(self) -> None:
        site = RouterSite()
        first = attach(site, SelectingConsumer("a", name="first"))
        attach(site, SelectingConsumer("b", name="second"))
        site.send("queue/a", b"a")
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert bodies_of(first) == ["a", "a"]

    def test_message_returns_after_a_while_and_when_the_other_consumer_leaves(self) -> None:
        site = RouterSite()
        first = attach(site, SelectingConsumer("a", name="first"))
        second = attach(site, SelectingConsumer("a", name="second", credit=0))
        site.send("queue/a", b"a")
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down(wait_s=RETURNED_WAIT_S + 0.1)
        assert bodies_of(first) == ["a", "a"]
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert len(first.got) == 2
        detach(site, second)
        assert len(first.got) == 3

    def test_message_of_a_group_returns_to_the_consumer_of_the_group(self) -> None:
        site = RouterSite()
        first = attach(site, SelectingConsumer("m", name="first"))
        site.send("queue/a", body("m", "g"), flags=AMQP | GROUPED | 1)
        second = attach(site, SelectingConsumer("m", name="second"))
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert (len(first.got), len(second.got)) == (2, 0)


class TestSelectors:
    def test_each_consumer_gets_what_it_selects(self) -> None:
        site = RouterSite()
        a, b = attach(site, SelectingConsumer("a")), attach(site, SelectingConsumer("b"))
        site.send("queue/a", b"a1", b"b1", b"c1", b"a2")
        assert (bodies_of(a), bodies_of(b)) == (["a1", "a2"], ["b1"])
        rest = attach(site, RecordingConsumer())
        assert bodies_of(rest) == ["c1"]
        for consumer in (a, b):
            consumer.settle_all()
        rest.answer(DeliveryOutcome.ACCEPTED)
        assert site.unacknowledged("queue/a") == 0

    def test_unselected_backlog_blocks_no_consumer_and_is_scanned_once(self) -> None:
        site = RouterSite()
        for i in range(40):
            site.send("queue/a", *[b"x%d" % i] * 500)
        picky = attach(site, SelectingConsumer("a", credit=1))
        for i in range(50):
            site.send("queue/a", b"a%d" % i)
            picky.credit = 1
            picky.joined.pump()
            site.settle_down()
            picky.settle_all()
        assert bodies_of(picky) == [f"a{i}" for i in range(50)]
        assert picky.asked <= 20_000 + 50
        assert site.unacknowledged("queue/a") == 20_000

    def test_same_selector_does_not_scan_again(self) -> None:
        site = RouterSite()
        site.send("queue/a", *[b"x"] * 5000)
        for i in range(5):
            picky = attach(site, SelectingConsumer("a"))
            assert picky.asked == (5000 if i == 0 else 0)
            detach(site, picky)
        site.send("queue/a", b"a")
        held = attach(site, SelectingConsumer("a"))
        assert bodies_of(held) == ["a"]
        detach(site, held)  # not settled: it returns to the queue
        assert bodies_of(attach(site, SelectingConsumer("a"))) == ["a"]

    def test_released_messages_find_another_consumer(self) -> None:
        site = RouterSite()
        first = attach(site, SelectingConsumer("a"))
        site.send("queue/a", b"a1", b"x", b"a2")
        other = attach(site, RecordingConsumer())
        assert bodies_of(other) == ["x"]
        first.credit = 0
        first.settle_all(DeliveryOutcome.RELEASED)
        site.settle_down()
        assert bodies_of(other) == ["x", "a1", "a2"]

    def test_failures_are_counted_and_undeliverable_messages_do_not_return(self) -> None:
        site = RouterSite(queue=AddressPolicy(redelivery=Redelivery(attempts_max=3), deadletter="deadletter/d"))
        dead = site.consumer("deadletter/d")
        picky = attach(site, SelectingConsumer("a"))
        site.send("queue/a", b"a1")
        picky.settle_all(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()
        assert picky.got == [("a1", 0), ("a1", 1)]
        picky.settle_all(DeliveryOutcome.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        assert len(picky.got) == 2
        other = attach(site, SelectingConsumer("a"))
        assert other.got == [("a1", 2)]
        other.settle_all(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()
        assert [run.flags & AMQP for run in dead.runs] == [0]

    def test_expired_messages_are_dropped_in_their_order(self) -> None:
        site = RouterSite()
        run = Run("queue/a", "d", AMQP | 1, header(ttl_ms=1000), [body("old")])
        site.router.publish(Publication(SilentOrigin(), run, ()))
        site.settle_down(wait_s=2.0)
        picky = attach(site, SelectingConsumer("o"))
        assert picky.got == []
        assert [lost.reason for lost in site.lost] == ["expired"]
        assert site.unacknowledged("queue/a") == 0

    def test_messages_taken_out_of_order_stay_taken_after_a_restart(self) -> None:
        site = RouterSite()
        picky = attach(site, SelectingConsumer("a"))
        site.send("queue/a", b"x1", b"a1", b"x2", b"a2")
        picky.settle_all()
        site.settle_down(wait_s=1.0)
        site.boot()
        assert bodies_of(attach(site, RecordingConsumer())) == ["x1", "x2"]

    def test_queue_is_read_in_order_after_the_selector_has_left(self) -> None:
        site = RouterSite()
        picky, plain = attach(site, SelectingConsumer("a")), attach(site, RecordingConsumer(credit=0))
        site.send("queue/a", b"a1", b"x1", b"a2", b"x2")
        picky.settle_all()
        detach(site, picky)
        plain.credit = 100
        plain.joined.pump()
        site.settle_down()
        site.send("queue/a", b"a3")
        assert bodies_of(plain) == ["x1", "x2", "a3"]
        subscription = site.router.queues["queue/a"]
        assert isinstance(subscription.order, QueueOrder)
        assert not subscription.order.views
        assert subscription.backlog == 0

    def test_drain_waits_only_for_the_scan(self) -> None:
        site = RouterSite()
        site.send("queue/a", *[b"x"] * 5000, b"a")
        picky = SelectingConsumer("a", credit=2)
        exhausted: list[int] = []
        picky.exhausted = lambda: exhausted.append(len(picky.got))  # type: ignore[attr-defined]
        picky.joined = site.router.subscriptions.subscribe(picky, "queue/a", SubscribeOptions())
        picky.joined.pump()
        assert not picky.joined.idle_now
        site.settle_down()
        assert exhausted[-1] == 1
        assert picky.joined.idle_now

    def test_gaps_between_taken_messages_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue, "TAKEN_RANGES_MAX", 4)
        site = RouterSite()
        picky = attach(site, SelectingConsumer("a"))
        site.send("queue/a", *[b"x", b"a"] * 10)
        assert len(picky.got) == 4
        rest = attach(site, RecordingConsumer())
        site.settle_down()
        assert len(rest.got) == 10
        assert len(picky.got) == 10

    def test_cached_selections_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue, "SELECTIONS_REMEMBERED_MAX", 2)
        site = RouterSite()
        site.send("queue/a", b"x")
        for letter in "abcdef":
            detach(site, attach(site, SelectingConsumer(letter)))
        subscription = site.router.queues["queue/a"]
        assert isinstance(subscription.order, QueueOrder)
        assert len(subscription.order._checked_to) <= 2


def send(site: RouterSite, text: str, *, priority: int | None = None, group: str | None = None) -> None:
    flags = AMQP | 1 | (GROUPED if group is not None else 0)
    properties = b"" if priority is None else header(priority)
    site.router.publish(Publication(SilentOrigin(), Run("queue/a", "d", flags, properties, [body(text, group)]), ()))
    site.settle_down()


class TestPriorities:
    def test_backlog_is_delivered_by_priority_and_in_order_within_each(self) -> None:
        site = RouterSite()
        for i, priority in enumerate([4, 1, 9, 5, None, 9, 0, 5]):
            send(site, f"{i}", priority=priority)
        assert values(attach(site, RecordingConsumer())) == ["2", "5", "3", "7", "0", "4", "1", "6"]

    def test_urgent_message_overtakes_any_backlog(self) -> None:
        site = RouterSite()
        consumer = attach(site, RecordingConsumer(credit=0))
        for _ in range(20):
            site.send("queue/a", *[body("x")] * 1000, flags=AMQP | 1)
        for i in range(3):
            send(site, f"u{i}", priority=9 if i else 7)
        consumer.credit = 5
        consumer.joined.pump()
        site.settle_down()
        assert values(consumer) == ["u1", "u2", "u0", "x", "x"]
        send(site, "u3", priority=5)
        consumer.credit = 2
        consumer.joined.pump()
        site.settle_down()
        assert values(consumer)[5:] == ["u3", "x"]

    def test_order_is_unchanged_while_consumers_keep_up(self) -> None:
        site = RouterSite()
        consumer = attach(site, RecordingConsumer())
        for i, priority in enumerate([0, 9, 4]):
            send(site, f"{i}", priority=priority)
        subscription = site.router.queues["queue/a"]
        assert isinstance(subscription.order, QueueOrder)
        assert not subscription.order.views
        assert values(consumer) == ["0", "1", "2"]

    def test_views_end_with_the_backlog(self) -> None:
        site = RouterSite()
        for i in range(6):
            send(site, f"{i}", priority=i)
        consumer = attach(site, RecordingConsumer())
        subscription = site.router.queues["queue/a"]
        assert isinstance(subscription.order, QueueOrder)
        assert values(consumer) == ["5", "4", "3", "2", "1", "0"]
        assert not subscription.order.views
        send(site, "last")
        assert values(consumer)[-1] == "last"

    def test_priorities_apply_with_a_selector(self) -> None:
        site = RouterSite()
        for i, priority in enumerate([4, 1, 9, 5]):
            send(site, f"a{i}", priority=priority)
            send(site, f"b{i}", priority=priority)
        assert values(attach(site, SelectingConsumer("b"))) == ["b2", "b3", "b0", "b1"]

    def test_cached_priorities_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(priorities, "PRIORITY_RANGES_MAX", 3)
        site = RouterSite()
        for i in range(8):
            send(site, f"{i}", priority=9 if i % 2 else 1)
        assert sorted(values(attach(site, RecordingConsumer(credit=100)))) == [str(i) for i in range(8)]
        index = priorities.Priorities()
        assert [index.note(9, 2 * i, 2 * i) for i in range(5)] == [True, True, True, False, False]
        assert index.note(9, 5, 6)

    def test_priorities_map_to_levels(self) -> None:
        run = Run("q", "d", AMQP, header(200), [b""])
        assert priorities.priority_of(run) == 9
        assert priorities.priority_of(Run("q", "d", AMQP, b"", [b""])) == 4
        assert priorities.priority_of(Run("q", "d", 0, header(9), [b""])) == 4


class TestGroups:
    def test_group_stays_with_one_consumer(self) -> None:
        site = RouterSite()
        consumers = [attach(site, RecordingConsumer(f"c{i}", credit=100)) for i in range(3)]
        for i in range(60):
            send(site, f"{i}", group=f"g{i % 12}")
        where = {}
        for consumer in consumers:
            for value in values(consumer):
                assert where.setdefault(int(value) % 12, consumer) is consumer
            assert values(consumer) == sorted(values(consumer), key=int)
        assert sum(len(consumer.got) for consumer in consumers) == 60
        assert len({id(consumer) for consumer in where.values()}) > 1

    @pytest.mark.parametrize("backlog", [False, True])
    def test_new_group_goes_to_the_consumer_with_the_fewest(self, backlog: bool) -> None:
        site = RouterSite()
        names_of_groups = [f"g{i}" for i in range(20)]
        buckets = {bucket_of(body("m", name)) for name in names_of_groups}
        if backlog:
            for name in names_of_groups:
                send(site, "m", group=name)
        first, second = RecordingConsumer("first", credit=0), RecordingConsumer("second", credit=0)
        attach(site, first), attach(site, second)
        first.credit = second.credit = 1000
        site.router.queues["queue/a"].pump()
        if not backlog:
            for name in names_of_groups:
                send(site, "m", group=name)
        site.settle_down()
        got = len(first.got), len(second.got)
        assert sum(got) == 20
        assert min(got) >= len(buckets) // 2 - (20 - len(buckets))

    def test_later_consumer_gets_new_groups(self) -> None:
        site = RouterSite()
        first = attach(site, RecordingConsumer("first", credit=1000))
        for i in range(10):
            send(site, "m", group=f"g{i}")
        second = attach(site, RecordingConsumer("second", credit=1000))
        for i in range(10, 15):
            send(site, "m", group=f"g{i}")
        assert (len(first.got), len(second.got)) == (10, 5)

    def test_consumer_without_credit_or_interest_gets_no_new_group(self) -> None:
        site = RouterSite()
        first = attach(site, RecordingConsumer("first", credit=1000))
        attach(site, RecordingConsumer("without credit", credit=0))
        attach(site, SelectingConsumer("z", name="choosy"))
        for i in range(6):
            send(site, "m", group=f"g{i}")
        assert len(first.got) == 6

    def test_group_waits_for_its_consumer_without_blocking_others(self) -> None:
        site = RouterSite()
        first, second = attach(site, RecordingConsumer("c1", credit=1)), attach(site, RecordingConsumer("c2", credit=0))
        send(site, "g-1", group="g")
        second.credit = 10
        send(site, "g-2", group="g")
        send(site, "plain")
        assert (values(first), values(second)) == (["g-1"], ["plain"])
        first.credit = 5
        first.joined.pump()
        site.settle_down()
        assert values(first) == ["g-1", "g-2"]

    def test_group_moves_when_its_consumer_leaves(self) -> None:
        site = RouterSite()
        first, second = attach(site, RecordingConsumer("c1", credit=1)), attach(site, RecordingConsumer("c2", credit=0))
        send(site, "g-1", group="g")
        second.credit = 10
        for i in (2, 3):
            send(site, f"g-{i}", group="g")
        assert values(second) == []
        detach(site, first)
        assert values(second) == ["g-1", "g-2", "g-3"]

    def test_groups_are_restored_after_a_restart(self) -> None:
        site = RouterSite()
        for i in range(40):
            send(site, f"{i}", group=f"g{i % 4}")
        site.boot()
        consumers = [attach(site, RecordingConsumer(f"c{i}", credit=30)) for i in range(2)]
        site.settle_down()
        where: dict[int, RecordingConsumer] = {}
        for consumer in consumers:
            for value in values(consumer):
                assert where.setdefault(int(value) % 4, consumer) is consumer

    def test_buckets_are_bounded(self) -> None:
        site = RouterSite()
        consumer = attach(site, RecordingConsumer())
        for i in range(50):
            run = Run("queue/a", "d", AMQP | 1 | GROUPED, b"", [body("x", f"{i}-{j}") for j in range(100)])
            consumer.credit = 1000
            site.router.publish(Publication(SilentOrigin(), run, ()))
            site.settle_down()
        subscription = site.router.queues["queue/a"]
        assert isinstance(subscription.order, QueueOrder)
        assert len(consumer.got) == 5000
        assert len(subscription.order._groups._owners) <= 1024


def test_view_holds_at_most_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "VIEW_READ_BYTES_MAX", 4096)
    site = RouterSite()
    picky = attach(site, SelectingConsumer("a", credit=0))
    for _ in range(20):
        site.send("queue/a", *[b"a" * 100] * 10)
    subscription = site.router.queues["queue/a"]
    assert isinstance(subscription.order, QueueOrder)
    held = subscription.order.views[0]
    assert sum(stored.run.size for stored in held._unsifted) <= 4096 + 1000
    picky.credit = 1000
    picky.joined.pump()
    for _ in range(10):
        site.settle_down()
    assert len(picky.got) == 200


class TestRanges:
    def test_ranges_follow_find_gaps_and_reject_outside_numbers(self) -> None:
        ranges = Ranges()
        ranges.add(2, 4)
        ranges.add(8, 9)
        assert [ranges.following(value) for value in (0, 3, 5, 9, 10)] == [2, 3, 8, 9, None]
        assert [ranges.free_from(value) for value in (0, 2, 4, 5, 8)] == [0, 5, 5, 5, 10]
        assert ranges.outside(0, 10) == [(0, 1), (5, 7), (10, 10)]
        assert ranges.outside(3, 4) == []


class Sliced(RouterSite):
    """A router with turns of the loop; its clock advances a third of a slice at each look."""

    def __init__(self, count: int) -> None:
        """Start with `count` queues of one message each."""
        self.turns: deque[Callable[[], None]] = deque()
        self.looks = 0
        super().__init__()
        for number in range(count):
            self.send(f"queue/{number}", b"x")
        self.turns.clear()
        self.boot()

    def boot(self) -> None:
        super().boot()
        self.router = Router(
            self.store,
            self.table,
            clock_ns=lambda: int(self.now * NS_PER_S),
            flush_soon=lambda: None,
            monotonic_s=self.look,
            soon=self.turns.append,
        )

    def look(self) -> float:
        self.looks += 1
        return self.now + self.looks * PATTERN_SLICE_S / 3

    def turn(self, count: int = 1) -> None:
        """Run the callbacks of this turn, and the reads that are finished."""
        for _ in range(count):
            for _ in range(len(self.turns)):
                self.turns.popleft()()
            while self.posted:
                self.posted.popleft()()

    @property
    def opened(self) -> int:
        return len(self.router.queues.opened)

    def consume(self, consumer: RecordingConsumer) -> PatternSubscription:
        joined = self.router.subscriptions.subscribe(consumer, "queue/#", SubscribeOptions())
        assert isinstance(joined, PatternSubscription)
        consumer.joined = joined
        joined.pump()
        return joined


class TestAllQueuesOfAFilter:
    """A consumer joins and is served thousands of queues, a slice in each turn of the loop."""

    def test_turn_takes_at_most_a_slice_and_all_queues_are_served(self) -> None:
        site, consumer, told = Sliced(40), RecordingConsumer(), list[int]()
        joined = site.consume(consumer)

        def tell() -> None:
            told.append(site.opened)
            joined.pump()

        joined.when_joined(tell)
        opened = [site.opened]
        while site.turns:
            site.turn()
            opened.append(site.opened)
        assert max(after - before for before, after in pairwise([0, *opened])) <= 3
        assert told == [40]
        assert len(consumer.got) == 40
        assert joined.idle_now

    def test_consumer_is_not_idle_before_the_end(self) -> None:
        site = Sliced(40)
        assert not site.consume(RecordingConsumer()).idle_now

    def test_each_queue_has_its_turn_with_little_credit(self) -> None:
        site, consumer = Sliced(0), RecordingConsumer(credit=0)
        for number in range(5):
            site.send(f"queue/{number}", *[b"%d" % number] * 5)
        joined = site.consume(consumer)
        site.turn(50)
        for _ in range(10):
            consumer.credit = 1
            joined.pump()
            site.turn(50)
        assert {name for name, _ in consumer.got} == {"0", "1", "2", "3", "4"}

    def test_consumer_that_leaves_during_the_walk_is_notified_and_gets_no_more(self) -> None:
        site, consumer, told = Sliced(40), RecordingConsumer(credit=0), list[bool]()
        joined = site.consume(consumer)
        joined.when_joined(lambda: told.append(True))
        site.turn(3)
        site.router.subscriptions.unsubscribe(consumer, joined, forget=False)
        assert told == [True]
        consumer.credit = 1000
        opened = site.opened
        site.turn(50)
        assert (consumer.got, site.opened, len(site.turns)) == ([], opened, 0)
        assert not any(consumer in queue.group for queue in site.router.queues.opened.values())
        site.send("queue/new", b"x")
        assert consumer.got == []

    def test_consumer_that_leaves_during_a_delivery_gets_no_more(self, caplog: pytest.LogCaptureFixture) -> None:
        class Leaving(RecordingConsumer):
            def take(self, subscription: Subscription, stored: Stored) -> None:
                super().take(subscription, stored)
                if self.joined is not None:
                    site.router.subscriptions.unsubscribe(self, self.joined, forget=False)

        site, leaving = Sliced(10), Leaving()
        site.consume(leaving)
        site.turn(50)
        assert len(leaving.got) == 1
        assert "raised" not in caplog.text
        other = RecordingConsumer()
        site.consume(other)
        site.turn(50)
        assert len(other.got) == 10

    def test_queues_may_be_created_and_deleted_during_the_walk(self) -> None:
        site, consumer = Sliced(40), RecordingConsumer()
        site.consume(consumer)
        site.router.publish(Publication(SilentOrigin(), Run("queue/new", "d", 1, b"", [b"new"]), ()))
        site.router.flush()
        other = RecordingConsumer("other", credit=0)
        site.router.subscriptions.subscribe(other, "queue/39", SubscribeOptions())
        site.turn(80)
        assert len(consumer.got) == 41

    def test_type_of_an_address_may_change_during_the_walk(self) -> None:
        site, consumer = Sliced(40), RecordingConsumer()
        joined = site.consume(consumer)
        site.turn(2)
        site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.TOPIC)]))
        site.router.subscriptions.unsubscribe(consumer, joined, forget=False, keep=True)
        got = len(consumer.got)
        site.turn(80)
        assert len(consumer.got) == got
        site.router.reconfigure(site.table)
        other = RecordingConsumer("other")
        site.consume(other)
        site.turn(80)
        assert len(other.got) == 40 - got
