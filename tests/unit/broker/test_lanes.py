"""Two lanes of one forwarder: new messages never wait for the backlog, and every message is in one lane."""

from __future__ import annotations

import logging
import random

import pytest

from bridge.message import Run, Stored
from edge.broker.delivery import backlog as backlog_module
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.forwarding import Forwarding
from tests.support.router_site import RouterSite, SilentOrigin
from tests.support.run_consumer import RunConsumer

NAME = "forwarder/hub/plant"


class Lane(RunConsumer):
    """One lane of an uplink: takes messages within its credit, and settles them when the test decides."""

    credit = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[int] = []
        self.unsettled: list[tuple[Subscription, int]] = []
        self.raises = False

    def take(self, subscription: Subscription, stored: Stored) -> None:
        if self.raises:
            raise ValueError("a fault of the consumer's")
        self.credit -= len(stored.run.bodies)
        self.got += [int(body) for body in stored.run.bodies]
        self.unsettled += [(subscription, stored.position + i) for i in range(len(stored.run.bodies))]

    def settle(self, count: int | None = None, outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED) -> None:
        now, self.unsettled = self.unsettled[:count], self.unsettled[len(self.unsettled[:count]) :]
        for subscription, position in now:
            subscription.settle(self, position, position, outcome)


class Crossing:
    """A site with one forwarder; its link comes and goes."""

    def __init__(self, **policies: AddressPolicy) -> None:
        self.site = RouterSite(**policies)
        self.sent = 0
        self.boot()

    def boot(self) -> None:
        self.site.boot()
        self.live, self.backlog = Lane("live"), Lane("backlog")
        self.forwarding = Forwarding(self.site.router, self.live, NAME, "topic/plant/#")
        self.forwarding.follow()
        self.site.settle_down()

    def publish(self, *bodies: int, address: str = "topic/plant/1") -> None:
        encoded = [b"%d" % body for body in bodies]
        self.site.router.publish(Publication(SilentOrigin(), Run(address, "device", 1, b"", encoded), ()))
        self.site.settle_down()

    def up(self, live: int = 100, backlog: int = 0) -> None:
        self.forwarding.split_lanes(self.site.store.logs, self.site.store.cursors, self.backlog)
        self.live.credit = live
        self.give(backlog)
        for subscription in self.forwarding.subscriptions:
            subscription.pump()
        self.site.settle_down()

    def give(self, credit: int) -> None:
        """Let the backlog lane take `count` more messages."""
        self.backlog.credit += credit
        for lane in self.forwarding.lanes:
            lane.pump()
        self.site.settle_down()

    def down(self) -> None:
        self.live.credit = self.backlog.credit = 0

    @property
    def kept(self) -> tuple[int, int]:
        """Return the bounds of the log after the sweep."""
        for _ in range(4):
            self.site.settle_down(wait_s=1.0)
        return self.site.store.logs.bounds(self.forwarding.parts[0].log)


def test_new_messages_do_not_wait_for_the_backlog() -> None:
    crossing = Crossing()
    crossing.publish(*range(10))
    crossing.up()
    crossing.publish(10, 11)
    assert (crossing.live.got, crossing.backlog.got) == ([10, 11], [])
    crossing.live.settle()
    crossing.give(4)
    assert crossing.backlog.got == [0, 1, 2, 3]
    crossing.publish(12)
    crossing.give(100)
    assert (crossing.live.got, crossing.backlog.got) == ([10, 11, 12], [*range(10)])
    assert crossing.forwarding.parts[0].backlog == 0
    crossing.backlog.settle()
    crossing.live.settle()
    assert crossing.kept == (13, 13)


def test_backlog_frees_space_while_the_live_lane_is_far_ahead() -> None:
    crossing = Crossing()
    for body in range(10):
        crossing.publish(body)
    crossing.up()
    for body in range(10, 40):
        crossing.publish(body)
    crossing.live.settle()
    assert crossing.kept == (0, 40)
    crossing.give(6)
    crossing.backlog.settle()
    assert crossing.kept == (6, 40)
    crossing.give(4)
    crossing.backlog.settle()
    assert crossing.kept == (40, 40)


def test_each_link_splits_the_lanes_again_and_a_restart_keeps_what_both_settled() -> None:
    crossing = Crossing()
    crossing.publish(0, 1, 2)
    crossing.up(backlog=1)
    crossing.publish(3)
    crossing.live.settle()
    crossing.backlog.settle()
    crossing.down()
    crossing.publish(4)
    crossing.up()
    crossing.publish(5)
    crossing.live.settle()
    assert crossing.live.got == [3, 5]
    assert crossing.forwarding.parts[0].backlog == 3
    crossing.site.settle_down(wait_s=1.0)
    crossing.boot()
    crossing.up(backlog=100)
    assert (crossing.live.got, crossing.backlog.got) == ([], [1, 2, 4])


def test_newest_first_sends_the_backlog_in_ordered_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "BACKLOG_CHUNK_POSITIONS", 4)
    crossing = Crossing()
    crossing.publish(*range(5))
    crossing.publish(*range(5, 10))
    crossing.forwarding.newest = True
    crossing.up(backlog=100)
    crossing.publish(10)
    assert crossing.backlog.got == [6, 7, 8, 9, 2, 3, 4, 5, 0, 1]
    assert crossing.live.got == [10]
    crossing.backlog.settle()
    crossing.live.settle()
    assert crossing.kept == (11, 11)


def test_both_lanes_skip_messages_that_do_not_match() -> None:
    crossing = Crossing()
    crossing.site.consumer("topic/#", options=SubscribeOptions(durable_name="amqp/c/s"))
    for body in range(6):
        crossing.publish(body, address="topic/plant/1" if body % 2 else "topic/other")
    crossing.up(backlog=100)
    for body in range(6, 12):
        crossing.publish(body, address="topic/plant/1" if body % 2 else "topic/other")
    assert (crossing.live.got, crossing.backlog.got) == ([7, 9, 11], [1, 3, 5])
    crossing.live.settle()
    crossing.backlog.settle()
    assert crossing.kept == (0, 12), "somebody else has not had it"
    assert crossing.site.store.cursors.record(crossing.forwarding.parts[0].cursor).position == 12


def test_new_messages_wait_when_there_are_too_many_gaps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backlog_module, "LANE_HOLES_MAX", 2)
    crossing = Crossing()
    for turn in range(4):
        crossing.down()
        crossing.publish(10 * turn)
        with caplog.at_level(logging.WARNING):
            crossing.up()
        crossing.publish(10 * turn + 1)
        crossing.live.settle()
    assert crossing.live.got == [1, 11, 20, 21, 30, 31]
    assert "2 gaps in the sent messages" in caplog.text
    record = crossing.site.store.cursors.record(crossing.forwarding.parts[0].cursor)
    assert (record.position, list(record.acknowledged)) == (0, [(1, 1), (3, 7)])
    crossing.give(100)
    assert crossing.backlog.got == [0, 10]
    crossing.backlog.settle()
    assert crossing.kept == (8, 8)


def test_evicted_messages_are_skipped_and_recorded() -> None:
    crossing = Crossing(topic=AddressPolicy(quota_bytes=20, when_full=WhenFull.DROP_OLDEST))
    for body in range(10, 20):
        crossing.publish(body)
    crossing.up()
    for body in range(20, 30):
        crossing.publish(body)
        crossing.site.settle_down(wait_s=1.0)
    crossing.live.settle()
    crossing.give(100)
    crossing.backlog.settle()
    lost = sum(entry.last - entry.first + 1 for entry in crossing.site.lost)
    assert lost > 0
    assert len({*crossing.live.got, *crossing.backlog.got}) + lost == 20
    assert crossing.kept == (20, 20)


def test_removed_forwarder_releases_all_messages() -> None:
    crossing = Crossing()
    crossing.publish(*range(6))
    crossing.up(backlog=2)
    crossing.publish(6)
    crossing.forwarding.end()
    assert crossing.site.router.subscriptions.durable[NAME].parts[0].backlog == 7
    crossing.live, crossing.backlog = Lane("live"), Lane("backlog")
    crossing.forwarding = Forwarding(crossing.site.router, crossing.live, NAME, "topic/plant/#")
    crossing.forwarding.follow()
    crossing.up(backlog=100)
    assert (crossing.live.got, crossing.backlog.got) == ([], [*range(7)])


def test_rejected_messages_of_both_lanes_are_dropped() -> None:
    crossing = Crossing()
    crossing.publish(0, 1, 2)
    crossing.up(backlog=100)
    crossing.publish(3)
    crossing.backlog.settle(1, DeliveryOutcome.REJECTED)
    crossing.live.settle(1, DeliveryOutcome.REJECTED)
    crossing.backlog.settle()
    assert [(entry.first, entry.reason) for entry in crossing.site.lost] == [(0, "rejected"), (3, "rejected")]
    assert crossing.kept == (4, 4)


@pytest.mark.parametrize("seed", range(30))
def test_each_message_is_taken_once_in_the_order_of_its_lane(seed: int) -> None:
    chance, crossing = random.Random(seed), Crossing()
    taken: list[int] = []
    steps = ("publish", "publish", "up", "down", "give", "settle", "settle", "wait", "raise", "boot", "release")
    for _ in range(250):
        match chance.choice(steps):
            case "publish":
                count = chance.randrange(1, 6)
                crossing.publish(*range(crossing.sent, crossing.sent + count))
                crossing.sent += count
            case "up":
                crossing.up(chance.randrange(20), chance.randrange(5))
            case "down":
                crossing.down()
            case "give":
                crossing.give(chance.randrange(8))
            case "settle":
                lane = chance.choice([crossing.live, crossing.backlog])
                settled = len(lane.unsettled) if chance.random() < 0.5 else chance.randrange(len(lane.unsettled) + 1)
                taken += _bodies(lane, settled)
                lane.settle(settled)
            case "wait":
                crossing.site.settle_down(wait_s=0.2)
            case "raise":
                part = crossing.forwarding.parts[0]
                part.handle_error(ValueError("a fault of the subscription's"))
                crossing.site.settle_down()
            case "boot" if chance.random() < 0.2:
                crossing.site.settle_down(wait_s=1.0)
                crossing.boot()
            case "release" if chance.random() < 0.3:
                lane = chance.choice([crossing.live, crossing.backlog])
                lane.settle(1, DeliveryOutcome.RELEASED)
    crossing.up(10_000, 10_000)
    for _ in range(6):
        crossing.site.settle_down(wait_s=0.2)
        for lane in (crossing.live, crossing.backlog):
            taken += _bodies(lane, len(lane.unsettled))
            lane.settle()
    assert sorted(taken) == [*range(crossing.sent)]
    assert crossing.kept == (crossing.sent, crossing.sent)
    assert crossing.site.lost == []


def _bodies(lane: Lane, count: int) -> list[int]:
    """Return the next messages to settle, by position: the test sends positions as bodies."""
    return [position for _, position in lane.unsettled[:count]]
