"""Limits of a connector on its link: rate, budget, quiet hours, and a start that differs by gateway."""

from __future__ import annotations

import datetime

import pytest

from bridge.lane import BatchLane
from bridge.pace import CHECK_INTERVAL_S_MAX, Pacer, PaceSettings, Spent
from tests.unit.bridge.lane_bench import LaneBench

LIVE, BACKLOG = BatchLane.LIVE, BatchLane.BACKLOG


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(f"{text}+00:00").timestamp()


class Clock:
    def __init__(self, text: str) -> None:
        self.utc_s = at(text)

    def __call__(self) -> float:
        return self.utc_s


NOVEMBER = "2026-11-22T12:00"


def pacer(pace: PaceSettings, clock: Clock | None = None, *, gateway: str = "gw1", spent: Spent | None = None) -> Pacer:
    made = Pacer(pace, gateway, utc_s=clock or Clock(NOVEMBER), spent=spent)
    made.begin(100.0)
    return made


class TestRate:
    def test_backlog_spends_the_available_rate_and_the_live_lane_may_overdraw(self) -> None:
        paced = pacer(PaceSettings(rate=1_000))
        assert paced.waits_until(BACKLOG, 600, 100.0) is None
        paced.sent(600, 100.0)
        assert paced.waits_until(BACKLOG, 600, 100.0) == pytest.approx(100.2)
        assert paced.waits_until(LIVE, 600, 100.0) is None
        paced.sent(600, 100.0)
        assert paced.waits_until(LIVE, 600, 100.0) == pytest.approx(100.2)
        assert paced.waits_until(LIVE, 600, 100.2) is None

    def test_average_keeps_the_rate(self) -> None:
        paced, now, sent = pacer(PaceSettings(rate=1_000)), 100.0, 0
        while now < 200.0:
            until = paced.waits_until(BACKLOG, 300, now)
            if until is None:
                paced.sent(300, now)
                sent += 300
            else:
                now = until + 1e-6
        assert sent == pytest.approx(100_000, rel=0.02)

    def test_batch_larger_than_a_second_leaves_once_the_second_is_full(self) -> None:
        paced = pacer(PaceSettings(rate=1_000))
        assert paced.waits_until(BACKLOG, 50_000, 100.0) is None
        paced.sent(50_000, 100.0)
        assert paced.waits_until(BACKLOG, 50_000, 100.0) == pytest.approx(150.0)


class TestBudget:
    def test_budget_ends_with_the_month(self) -> None:
        clock = Clock(NOVEMBER)
        paced = pacer(PaceSettings(monthly_budget=1_000), clock)
        paced.count_bytes(800)
        assert paced.used == 0.8
        assert paced.waits_until(LIVE, 1, 100.0) is None
        paced.count_bytes(200)
        assert paced.is_used_up
        assert paced.waits_until(LIVE, 1, 100.0) == paced.waits_until(BACKLOG, 1, 100.0) == 100.0 + CHECK_INTERVAL_S_MAX
        clock.utc_s = at("2026-12-01T00:00")
        paced.check_month(clock_good=False)
        assert (paced.spent.month, paced.spent.bytes, paced.is_used_up) == ("2026-12", 0, False)

    def test_budget_continues_over_a_restart(self) -> None:
        assert pacer(PaceSettings(monthly_budget=1_000), spent=Spent("2026-11", 900)).used == 0.9
        assert pacer(PaceSettings(monthly_budget=1_000), spent=Spent("2026-10", 900)).used == 0.0

    def test_unsynchronised_clock_does_not_restart_a_month(self) -> None:
        clock = Clock("1970-01-01T00:00")
        paced = pacer(PaceSettings(monthly_budget=1_000), clock, spent=Spent("2026-11", 900))
        assert paced.used == 0.9
        clock.utc_s = at("2035-01-01T00:00")
        paced.check_month(clock_good=False)
        assert paced.spent.month == "2035-01"
        clock.utc_s = at(NOVEMBER)
        paced.check_month(clock_good=False)
        assert paced.spent.month == "2035-01"
        paced.check_month(clock_good=True)
        assert paced.spent.month == "2026-11"


class TestQuietHours:
    @pytest.mark.parametrize(
        ("time", "quiet"),
        [("21:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("05:59", True), ("06:00", False)],
    )
    def test_quiet_hours_may_span_midnight(self, time: str, quiet: bool) -> None:
        paced = pacer(PaceSettings(quiet_hours="22:00-06:00"), Clock(f"2026-11-22T{time}"))
        assert paced.is_quiet(BACKLOG) is quiet
        assert not paced.is_quiet(LIVE)
        assert (paced.waits_until(BACKLOG, 1, 100.0) is not None) is quiet

    def test_quiet_hours_within_a_day_apply_to_the_live_lane(self) -> None:
        pace = PaceSettings(quiet_hours="08:00-18:00", quiet_live=True)
        assert pacer(pace).is_quiet(LIVE)
        assert not pacer(pace, Clock("2026-11-22T18:00")).is_quiet(LIVE)


def test_each_gateway_starts_its_backlog_at_its_own_time() -> None:
    pace = PaceSettings(start_jitter_s=60.0)
    starts = [pacer(pace, gateway=f"gw{number}").waits_until(BACKLOG, 1, 100.0) for number in range(1_000)]
    assert all(start is not None and 100.0 <= start < 160.0 for start in starts)
    tenths = [sum(100 + 6 * i <= (start or 0) < 106 + 6 * i for start in starts) for i in range(10)]
    assert min(tenths) > 60
    assert pacer(pace).waits_until(LIVE, 1, 100.0) is None
    assert pacer(pace).waits_until(BACKLOG, 1, 160.0) is None


class TestUplink:
    def test_uplink_keeps_the_pace_and_states_when_it_resumes(self) -> None:
        bench = LaneBench(pacer=pacer(PaceSettings(rate=1_000)))
        bench.left(b"1")
        assert bench.flush() == [("BACKLOG", [b"1"])]
        bench.left(b"2", position=1)
        bench.come(b"3")
        assert bench.flush() == [("LIVE", [b"3"])]
        assert bench.uplink.due_at is not None
        bench.now = bench.uplink.due_at
        assert bench.flush() == [("BACKLOG", [b"2"])]

    def test_messages_beyond_the_budget_stay_in_the_store(self) -> None:
        paced = pacer(PaceSettings(monthly_budget=10_000))
        bench = LaneBench(pacer=paced)
        bench.uplink.count_bytes(10_000)
        bench.come(b"1")
        bench.left(b"2")
        assert bench.flush() == []
        assert bench.live.outcomes == bench.old.outcomes == []
        assert bench.uplink.due_at == bench.now + CHECK_INTERVAL_S_MAX
        assert bench.uplink.figures.wire_bytes == 10_000
