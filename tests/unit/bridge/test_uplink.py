"""Answers of the uplink to any behaviour of a peer, on a link that records what was sent."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest

from bridge import plain
from bridge.batch import CAPABILITY, decode
from bridge.engine import Condition, DeliveryState, Link
from bridge.flow import Outcomes
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.uplink import Uplink, UplinkLimits
from tests.unit.bridge.uplink_ends import RecordingSubscription, RecordingWire


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class Bench:
    def __init__(self, *, batching: bool = True, credit: int = 10, max_message_size: int = 0, **lineage: Any) -> None:
        limits = UplinkLimits(live_window_bytes=100_000, batch_bytes=1_000, batches_undelayed=2)
        outcomes = Outcomes("accepted", "rejected")
        self.uplink = Uplink("uplink", Hop("gw1", "epoch"), space="s", outcomes=outcomes, limits=limits, **lineage)
        self.cuts: list[str] = []
        self.wire: Any = RecordingWire()
        self.link = Link(None, None, "telemetry", is_sender=True, ours=True)
        self.link.credit = credit
        self.link.max_message_size = max_message_size
        self.link.offered_capabilities = (CAPABILITY,) if batching else ()
        self.subscription = RecordingSubscription()
        self.uplink.live.add(self.subscription)
        self.uplink.attached(self.wire, self.link, self.cuts.append)

    def deliver(self, position: int, *bodies: bytes, sequence: int | None = None) -> None:
        run = Run("plant", "dev", 1, b"", list(bodies), 5)
        stored = Stored(position, position if sequence is None else sequence, run)
        self.uplink.live.deliver(self.subscription, [stored])

    def answer(self, state: DeliveryState, *, settled: bool = True, tag: int | None = None) -> None:
        tag = self.wire.sent[-1][0] if tag is None else tag
        self.uplink.settled([(tag, state, settled, Condition("amqp:decode-error"))], 12.5)

    def batches(self) -> list[list[bytes]]:
        return [decode(plain.body_of(message)).bodies for _, message in self.wire.sent]


def test_batch_carries_the_end_of_the_store() -> None:
    reached = {0: 7}
    bench = Bench(log_of=lambda _: 3, reached=lambda: reached)
    bench.deliver(40, b"1", b"2")
    bench.uplink.flush()
    reached[0] = 8
    bench.deliver(42, b"3")
    bench.uplink.flush()
    assert [plain.ends_of(message) for _, message in bench.wire.sent] == [{0: 7, 3: 42}, {0: 8, 3: 43}]


class TestOutcomes:
    def test_accepted_batch_is_settled(self) -> None:
        bench = Bench()
        bench.deliver(0, b"1", b"2")
        bench.deliver(2, b"3")
        bench.deliver(7, b"4")
        bench.uplink.flush()
        assert bench.subscription.outcomes == []
        bench.answer(DeliveryState.ACCEPTED)
        assert bench.subscription.outcomes == [(0, 2, "accepted"), (7, 7, "accepted")]
        assert bench.uplink.figures.last_accepted_at == 12.5
        assert bench.uplink.held_bytes == 0

    @pytest.mark.parametrize("state", [DeliveryState.REJECTED, DeliveryState.MODIFIED_UNDELIVERABLE])
    def test_rejected_is_never_accepted(self, state: DeliveryState) -> None:
        bench = Bench()
        bench.deliver(0, b"1", b"2")
        bench.uplink.flush()
        bench.answer(state)
        assert bench.subscription.outcomes == [(0, 1, "rejected")]
        assert bench.uplink.figures.messages_rejected == 2
        assert bench.uplink.figures.messages_accepted == 0
        assert bench.cuts == []

    @pytest.mark.parametrize(
        "state", [DeliveryState.RELEASED, DeliveryState.MODIFIED, DeliveryState.MODIFIED_FAILED, DeliveryState.NONE]
    )
    @pytest.mark.parametrize("batching", [True, False])
    def test_released_batch_is_repeated_over_a_new_connection(self, state: DeliveryState, batching: bool) -> None:
        bench = Bench(batching=batching)
        bench.deliver(0, b"1")
        bench.uplink.flush()
        bench.deliver(1, b"2")
        bench.uplink.flush()
        bench.answer(state, tag=bench.wire.sent[0][0])
        assert len(bench.cuts) == 1
        assert bench.subscription.outcomes == []
        bench.uplink.detached()
        bench.wire.sent.clear()
        bench.link.credit, bench.link.offered_capabilities = 10, (CAPABILITY,)
        bench.uplink.attached(bench.wire, bench.link, bench.cuts.append)
        bench.uplink.flush()
        assert bench.batches() == [[b"1", b"2"]]
        assert bench.uplink.figures.messages_resent == 2

    def test_unsettled_outcomes_are_settled_by_us(self) -> None:
        bench = Bench()
        bench.deliver(0, b"1")
        bench.uplink.flush()
        bench.answer(DeliveryState.ACCEPTED, settled=False)
        assert bench.wire.settled == [bench.wire.sent[0][0]]

    def test_settled_delivery_has_no_outcome(self) -> None:
        bench = Bench()
        bench.deliver(-1, b"1", b"2", sequence=5)
        bench.uplink.flush()
        bench.answer(DeliveryState.ACCEPTED)
        assert bench.subscription.outcomes == []
        assert bench.uplink.figures.messages_accepted == 2

    def test_message_without_a_sequence_is_counted_and_not_sent(self) -> None:
        bench = Bench()
        bench.deliver(-1, b"1", sequence=-1)
        bench.uplink.flush()
        assert bench.wire.sent == []
        assert bench.uplink.unnamed == 1

    def test_unknown_tags_are_ignored(self) -> None:
        bench = Bench()
        bench.answer(DeliveryState.ACCEPTED, tag=77)
        bench.answer(DeliveryState.RELEASED, tag=78)
        assert bench.cuts == []


class TestCutting:
    def test_large_runs_are_split(self) -> None:
        bench = Bench()
        bench.deliver(0, *[b"x" * 31] * 25)
        bench.uplink.flush()
        bench.uplink.flush()
        assert [len(batch) for batch in bench.batches()] == [10, 10], "the rest waits: it is not full"
        bench.answer(DeliveryState.ACCEPTED, tag=bench.wire.sent[0][0])
        bench.uplink.flush()
        assert [len(batch) for batch in bench.batches()] == [10, 10, 5]
        assert bench.subscription.outcomes == [(0, 9, "accepted")]

    def test_large_message_is_a_batch_of_its_own(self) -> None:
        bench = Bench()
        bench.deliver(0, b"x" * 5000)
        bench.deliver(1, b"y")
        bench.uplink.flush()
        assert bench.batches() == [[b"x" * 5000], [b"y"]]

    def test_batches_are_limited_by_the_credit(self) -> None:
        for batching in (True, False):
            bench = Bench(batching=batching, credit=3)
            bench.deliver(0, *[b"x" * 936] * 5)
            bench.uplink.flush()
            assert len(bench.wire.sent) == (3 if not batching else 2 + 1)
            bench.link.credit = 1
            bench.uplink.flush()
            assert len(bench.wire.sent) == 4

    @pytest.mark.parametrize("batching", [True, False])
    def test_one_too_large_message_does_not_affect_others(self, batching: bool) -> None:
        bench = Bench(batching=batching, max_message_size=600)
        noise = bytes(range(256)) * 8
        bench.deliver(0, b"1", b"2", noise, b"3", b"4")
        bench.uplink.flush()
        while bench.uplink.in_flight[0]:
            for tag, _ in list(bench.wire.sent):
                bench.answer(DeliveryState.ACCEPTED, tag=tag)
            bench.uplink.flush()
        positions = {p: outcome for first, last, outcome in bench.subscription.outcomes for p in range(first, last + 1)}
        if batching:
            assert positions == dict.fromkeys(range(5), "accepted"), "it compresses"
        else:
            assert positions == {0: "accepted", 1: "accepted", 2: "rejected", 3: "accepted", 4: "accepted"}
        assert bench.uplink.held_bytes == 0

    def test_incompressible_message_above_the_limit_is_rejected_alone(self) -> None:
        bench = Bench(max_message_size=600)
        bench.deliver(0, b"1", Random(1).randbytes(700), b"2")
        bench.uplink.flush()
        for tag, _ in list(bench.wire.sent):
            bench.answer(DeliveryState.ACCEPTED, tag=tag)
        bench.uplink.flush()
        for tag, _ in list(bench.wire.sent):
            bench.answer(DeliveryState.ACCEPTED, tag=tag)
        assert sorted(bench.subscription.outcomes) == [(0, 0, "accepted"), (1, 1, "rejected"), (2, 2, "accepted")]


class TestCredit:
    def test_no_credit_without_a_link(self) -> None:
        bench = Bench()
        assert bench.uplink.live.credit > 0
        bench.uplink.detached()
        assert bench.uplink.live.credit == 0

    def test_credit_follows_the_size_of_messages(self) -> None:
        bench = Bench()
        assert bench.uplink.live.credit == 100_000 // 4096, "careful before it has seen any"
        for position in range(50):
            bench.deliver(position, b"x" * 36)
        assert 80 < bench.uplink.live.credit < 100_000 / 100
        bench.deliver(50, b"x" * 9_000)
        assert bench.uplink.live.credit < 10, "large ones count at once"
        while bench.uplink.live.credit:
            position += 1
            bench.deliver(position, b"x" * 936)
        assert 100_000 <= bench.uplink.held_bytes < 102_000

    def test_subscriptions_are_pumped_in_turns_when_there_is_room(self) -> None:
        bench = Bench()
        other = RecordingSubscription()
        bench.uplink.live.add(other)
        bench.deliver(0, b"1")
        bench.uplink.flush()
        before = (bench.subscription.pumps, other.pumps)
        bench.answer(DeliveryState.ACCEPTED)
        assert (bench.subscription.pumps, other.pumps) == (before[0] + 1, before[1] + 1)

    def test_drain_is_answered_when_there_is_nothing(self) -> None:
        bench = Bench()
        bench.link.draining = True
        bench.uplink.flush()
        assert bench.wire.drains == 1


class Epochs:
    """Sequences below 2 of every address belong to the epoch before."""

    single = False

    def of(self, _address: str, sequence: int) -> str:
        return "old" if sequence < 2 else "new"

    def start(self, _address: str) -> int:
        return 2


@pytest.mark.parametrize("batching", [True, False])
def test_messages_of_two_epochs_are_separate_batches(batching: bool) -> None:
    bench = Bench(batching=batching)
    bench.uplink._epochs = Epochs()
    bench.deliver(0, b"1", b"2")
    bench.deliver(2, b"3")
    bench.uplink.flush()
    if batching:
        sent = [decode(plain.body_of(message)) for _, message in bench.wire.sent]
        assert [(batch.epoch, batch.bodies) for batch in sent] == [("old", [b"1", b"2"]), ("new", [b"3"])]
        assert [batch.ranges[0].base for batch in sent] == [0, 2]
    else:
        arrivals = [plain.parse(message) for _, message in bench.wire.sent]
        assert [(arrival.epoch, arrival.sequence) for arrival in arrivals] == [("old", 0), ("old", 1), ("new", 2)]
