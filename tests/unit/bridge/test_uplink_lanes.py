"""Two lanes over one link: the live lane goes first and gathers, the backlog uses the rest of the link."""

from __future__ import annotations

import random

import pytest

from bridge import plain
from bridge.batch import decode
from bridge.limits import (
    BACKLOG_POLL_S,
    BACKLOG_QUEUE_S,
    BACKLOG_UNSENT_BYTES_MAX,
    BACKLOG_UNSENT_BYTES_MIN,
    LIVE_CREDIT_KEPT,
)
from bridge.link_rate import REMEMBERED_S, LinkRate
from bridge.socket_room import SocketRoom
from bridge.transport.tcp_path import TcpPath
from bridge.uplink import UplinkLimits
from tests.unit.bridge.lane_bench import LaneBench


def test_batch_states_its_lane_and_the_live_lane_goes_first() -> None:
    bench = LaneBench()
    bench.left(b"1", b"2")
    bench.come(b"3")
    assert bench.flush() == [("LIVE", [b"3"]), ("BACKLOG", [b"1", b"2"])]
    bench.accept(0)
    bench.accept(1)
    assert (bench.live.outcomes, bench.old.outcomes) == ([(1_000, 1_000, "accepted")], [(0, 1, "accepted")])


def test_first_reading_leaves_at_once_and_later_ones_gather() -> None:
    bench = LaneBench()
    bench.come(b"1")
    assert bench.flush() == [("LIVE", [b"1"])]
    bench.now += 0.05
    bench.come(b"2", position=1_001)
    assert bench.flush() == []
    assert bench.uplink.due_at == pytest.approx(100.2)
    bench.now += 0.1
    bench.come(b"3", position=1_002)
    assert bench.flush() == []
    bench.now = 100.2
    assert bench.flush() == [("LIVE", [b"2", b"3"])]
    assert bench.uplink.due_at is None


class TestLastCredit:
    """The last credit waits for further live messages while an answer is pending, as a hub with little credit serves
    thousands of gateways."""

    def two_sent_for(self, credit: int) -> LaneBench:
        bench = LaneBench(credit=credit)
        bench.come(b"1")
        assert bench.flush() == [("LIVE", [b"1"])]
        bench.now += 0.3
        bench.come(b"2", position=1_001)
        return bench

    def test_last_credit_waits_for_more_messages_while_an_answer_is_pending(self) -> None:
        bench = self.two_sent_for(2)
        assert bench.flush() == []
        assert bench.uplink.due_at == pytest.approx(101.0)
        bench.come(b"3", position=1_002)
        bench.now = 101.0
        assert bench.flush() == [("LIVE", [b"2", b"3"])]

    def test_batch_leaves_when_there_is_more_credit(self) -> None:
        assert self.two_sent_for(3).flush() == [("LIVE", [b"2"])]

    def test_answer_releases_the_waiting_batch(self) -> None:
        bench = self.two_sent_for(2)
        bench.accept()
        assert bench.flush() == [("LIVE", [b"2"])]

    def test_full_batch_does_not_wait(self) -> None:
        bench = self.two_sent_for(2)
        bench.come(b"x" * 2_000, position=1_002)
        assert [lane for lane, _ in bench.flush()] == ["LIVE"]

    def test_peer_with_a_credit_of_one_is_served_as_usual(self) -> None:
        bench = self.two_sent_for(1)
        bench.accept()
        bench.link.credit = 1
        assert bench.flush() == [("LIVE", [b"2"])]


def test_full_batch_does_not_gather() -> None:
    bench = LaneBench()
    bench.come(b"1")
    bench.flush()
    bench.come(b"x" * 2_000, position=1_001)
    assert len(bench.flush()) == 1


def test_backlog_waits_while_the_socket_holds_much() -> None:
    bench = LaneBench()
    bench.shell.path = TcpPath(BACKLOG_UNSENT_BYTES_MIN)
    bench.left(b"1")
    bench.come(b"2")
    assert bench.flush() == [("LIVE", [b"2"])]
    bench.now += 1.0
    assert bench.flush() == []
    assert bench.uplink.due_at == bench.now + BACKLOG_POLL_S
    bench.shell.path = TcpPath(BACKLOG_UNSENT_BYTES_MIN - 1)
    assert bench.flush() == [("BACKLOG", [b"1"])]


def test_flushed_bytes_count_until_the_socket_had_a_turn() -> None:
    bench = LaneBench()
    for index in range(40):
        bench.left(bytes([index]) * 900, position=index)
    noise = random.Random(1)
    for index in range(40):
        bench.left(noise.randbytes(900), position=40 + index)
    bench.flush()
    sent = sum(len(message) for _, message in bench.wire.sent)
    assert BACKLOG_UNSENT_BYTES_MIN <= sent < BACKLOG_UNSENT_BYTES_MIN + 2_000
    assert bench.shell.flushes > 0, "the next turn looks again"
    assert bench.uplink.due_at is None


def test_backlog_leaves_credit_to_the_live_lane() -> None:
    bench = LaneBench(credit=LIVE_CREDIT_KEPT * 4)
    for index in range(100):
        bench.left(b"x" * 950, position=index)
        bench.flush()
    assert bench.link.credit == LIVE_CREDIT_KEPT
    bench.come(b"1")
    assert bench.flush() == [("LIVE", [b"1"])]


def test_peer_with_a_credit_of_one_gets_both_lanes() -> None:
    bench = LaneBench(credit=1)
    bench.left(b"1")
    assert bench.flush() == [("BACKLOG", [b"1"])]


@pytest.mark.parametrize("credit", [2, 3])
def test_one_of_few_credits_is_left_to_the_live_lane(credit: int) -> None:
    bench = LaneBench(credit=credit)
    for index in range(10):
        bench.left(b"x" * 950, position=index)
        bench.flush()
    assert bench.link.credit == 1
    bench.come(b"1")
    assert bench.flush() == [("LIVE", [b"1"])]


def test_slow_link_gets_small_batches_of_the_backlog() -> None:
    bench = LaneBench()
    bench.uplink.limits = UplinkLimits(batch_bytes=100_000, batches_undelayed=100)
    noise = random.Random(1)
    bodies = [noise.randbytes(60) for _ in range(4_000)]
    bench.left(*bodies)
    bench.flush()
    first = len(decode(plain.body_of(bench.wire.sent[0][1])).bodies)
    bench.now += 10.0
    for index in range(len(bench.wire.sent)):
        bench.accept(index)
    before = len(bench.wire.sent)
    bench.flush()
    then = len(decode(plain.body_of(bench.wire.sent[before][1])).bodies)
    assert 0 < then < first / 4, "no larger than what leaves in a moment, or an eighth of the largest"


@pytest.mark.parametrize("share", [0.8, 0.5, 0.25])
def test_interleaved_lanes_share_the_link(share: float) -> None:
    bench, noise = LaneBench(credit=1), random.Random(1)
    bench.uplink.set_live_share(share)
    sent = {"LIVE": 0, "BACKLOG": 0}
    for turn in range(400):
        while bench.uplink.live.pending_bytes < 3_000:
            bench.come(noise.randbytes(900), position=1_000 + turn)
        while bench.uplink.backlog.pending_bytes < 3_000:
            bench.left(noise.randbytes(900), position=turn)
        bench.link.credit = 1
        bench.shell.path = TcpPath(0)
        for lane, bodies in bench.flush():
            sent[lane] += len(bodies)
        for index in range(len(bench.wire.sent)):
            bench.accept(index)
        bench.wire.sent.clear()
        bench.now += 1.0
    assert sent["LIVE"] / sum(sent.values()) == pytest.approx(share, abs=0.1)


def test_interleaved_backlog_alone_has_the_link() -> None:
    bench = LaneBench()
    bench.uplink.set_live_share(0.8)
    bench.left(b"1")
    assert bench.flush() == [("BACKLOG", [b"1"])]
    bench.come(b"2")
    assert bench.flush() == [("LIVE", [b"2"])]


def test_each_lane_is_repeated_in_its_order() -> None:
    bench = LaneBench()
    bench.left(b"1")
    bench.come(b"2")
    bench.flush()
    bench.uplink.detached()
    assert bench.uplink.live.credit == bench.uplink.backlog.credit == 0
    bench.come(b"3", position=1_001)
    bench.uplink.attached(bench.wire, bench.link, lambda _reason: None)
    assert bench.flush() == [("LIVE", [b"2", b"3"]), ("BACKLOG", [b"1"])]


def test_peer_without_batches_gets_the_live_lane_first() -> None:
    bench = LaneBench(batching=False)
    bench.left(b"1")
    bench.come(b"2", b"3")
    bench.uplink.flush()
    assert [message[-1:] for _, message in bench.wire.sent] == [b"2", b"3", b"1"]


def test_windows_of_lanes_are_separate() -> None:
    bench = LaneBench()
    while bench.uplink.backlog.credit:
        bench.left(b"x" * 100_000)
    assert bench.uplink.live.credit > 0


class TestSocketRoom:
    def test_room_doubles_while_bytes_leave_quickly(self) -> None:
        room = SocketRoom()
        for turn in range(30):
            room.record_sent(100_000, turn * 0.01)
            assert room.is_full == (room.bytes <= 100_000)
            room.update(TcpPath(0), turn * 0.01 + 0.005)
        assert room.bytes == BACKLOG_UNSENT_BYTES_MAX

    def test_room_shrinks_in_proportion_to_the_delay(self) -> None:
        room = SocketRoom()
        room.record_sent(1, 0.0)
        for _ in range(4):
            room.update(TcpPath(0), 0.0)
            room.record_sent(1, 0.0)
        assert room.bytes == 16 * BACKLOG_UNSENT_BYTES_MIN
        room.update(TcpPath(1), 0.3)
        assert room.bytes == 16 * BACKLOG_UNSENT_BYTES_MIN, "it has not left"
        room.update(TcpPath(0), 4 * BACKLOG_QUEUE_S)
        assert room.bytes == 4 * BACKLOG_UNSENT_BYTES_MIN
        room.record_sent(1, 1.0)
        room.update(TcpPath(0), 100.0)
        assert room.bytes == BACKLOG_UNSENT_BYTES_MIN

    def test_long_round_trip_is_not_a_queue(self) -> None:
        room = SocketRoom()
        room.record_sent(1, 0.0)
        room.update(TcpPath(0, round_trip_s=0.6), 0.69)
        assert room.bytes == BACKLOG_UNSENT_BYTES_MIN
        room.record_sent(1, 1.0)
        room.update(TcpPath(0, round_trip_s=0.6), 1.3)
        assert room.bytes == 2 * BACKLOG_UNSENT_BYTES_MIN

    def test_only_bytes_that_waited_are_timed(self) -> None:
        room = SocketRoom()
        room.record_sent(1_000, 0.0)
        room.record_sent(9_000, 0.0)
        assert room.is_full
        room.update(TcpPath(9_000), 0.01)
        assert not room.is_full, "the first has left, and soon: there is more room"


class TestLinkRate:
    def test_rate_counts_bytes_acknowledged_since_a_delivery_left(self) -> None:
        rate = LinkRate()
        assert (rate.bytes_s, rate.answer_s) == (0.0, 0.0)
        first = rate.sent(10.0, idle=True)
        second = rate.sent(10.0, idle=False)
        rate.acknowledged(first, 1_000, 11.0)
        assert (rate.bytes_s, rate.answer_s) == (1_000, 1.0)
        rate.acknowledged(second, 1_000, 12.0)
        third = rate.sent(12.0, idle=False)
        rate.acknowledged(third, 3_000, 13.0)
        assert rate.bytes_s == 3_000

    def test_rate_decays(self) -> None:
        rate = LinkRate()
        rate.acknowledged(rate.sent(10.0, idle=True), 1_000_000, 10.5)
        late = 11.0 + REMEMBERED_S
        rate.acknowledged(rate.sent(late, idle=True), 1_000, late + 1.0)
        assert rate.bytes_s == 1_000

    def test_simultaneous_answers_are_counted_together(self) -> None:
        rate = LinkRate()
        sent = [rate.sent(10.0 + index / 10, idle=index == 0) for index in range(10)]
        for one in sent:
            rate.acknowledged(one, 100, 11.0)
        assert rate.bytes_s == pytest.approx(1_000)
