"""Drain of a hub: connections are closed in slices, after what they have sent is answered."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from cloud.hub.draining import HubDrain
from cloud.hub.limits import DRAIN_RECONNECTS_PER_S, DRAIN_SETTLE_S, DRAIN_SLICE_MIN, DRAIN_SLICE_S


class Clock:
    """Clock that only sleeps move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class DrainedStub:
    """Connection that is idle a while after its last read."""

    def __init__(self, clock: Clock, busy_s: float = 0.0) -> None:
        self._clock = clock
        self._busy_s = busy_s
        self.paused_at: float | None = None
        self.closed_at: float | None = None
        self.hint_s = -1.0

    @property
    def idle(self) -> bool:
        return self.paused_at is not None and self._clock.now_s >= self.paused_at + self._busy_s

    def pause(self) -> None:
        assert self.paused_at is None
        self.paused_at = self._clock.now_s

    def close(self, reconnect_after_s: float) -> None:
        assert self.closed_at is None, "closed once"
        self.closed_at, self.hint_s = self._clock.now_s, reconnect_after_s


def drain(count: int, seconds: float, *, busy_s: float = 0.0) -> tuple[list[DrainedStub], float]:
    """Drain connections; return them, and the duration."""
    clock = Clock()
    made = [DrainedStub(clock, busy_s) for _ in range(count)]
    asyncio.run(HubDrain(seconds, clock=lambda: clock.now_s, sleep=clock.sleep, chance=lambda: 0.5).run(made))
    return made, clock.now_s


def test_few_connections_are_closed_in_one_slice() -> None:
    made, took_s = drain(DRAIN_SLICE_MIN, 60.0)
    assert {each.closed_at for each in made} == {DRAIN_SLICE_S}
    assert took_s == DRAIN_SLICE_S


def test_many_connections_are_spread_over_the_time() -> None:
    made, took_s = drain(2_000, 60.0)
    a_second = Counter(each.closed_at for each in made)
    assert took_s <= 60.0
    assert max(a_second.values()) == 37, "2 000 in 55 slices"
    assert {each.hint_s for each in made} == {0.5 * 37 / DRAIN_RECONNECTS_PER_S}


def test_short_drain_asks_connections_to_come_back_later() -> None:
    made, _ = drain(2_000, 6.0)
    assert max(each.hint_s for each in made) == pytest.approx(0.5 * 2_000 / DRAIN_RECONNECTS_PER_S)


def test_connection_is_closed_after_its_answers() -> None:
    made, _ = drain(3, 60.0, busy_s=2.5)
    assert {each.closed_at for each in made} == {3 * DRAIN_SLICE_S}


def test_connection_without_answers_is_closed_in_time() -> None:
    made, took_s = drain(3, 60.0, busy_s=1e9)
    assert {each.closed_at for each in made} == {DRAIN_SETTLE_S}
    assert took_s == DRAIN_SETTLE_S


@pytest.mark.parametrize("count", [0, 1, 500, 5_000])
def test_all_are_closed_whatever_the_time(count: int) -> None:
    made, took_s = drain(count, 3.0, busy_s=1e9)
    assert all(each.closed_at is not None for each in made)
    assert took_s <= 3.0 + DRAIN_SLICE_S
