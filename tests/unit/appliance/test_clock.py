"""Conditions under which a gateway trusts its clock."""

from __future__ import annotations

import pytest

from edge.appliance.clock import EARLIEST, QUERY_INTERVAL_S, ClockQuality, boot_id, kernel_synchronized
from edge.broker.model.clock import ClockReading

S = 1_000_000_000


class Machine:
    """A clock, the state that the kernel reports for it, and the number of queries."""

    def __init__(self) -> None:
        self.time = EARLIEST + 1
        self.monotonic = 0.0
        self.synchronized = True
        self.asked = 0

    def ask(self) -> bool:
        self.asked += 1
        return self.synchronized

    def passes(self, seconds: float) -> None:
        self.time += seconds
        self.monotonic += seconds

    def quality(self) -> ClockQuality:
        return ClockQuality(self.ask, now=lambda: self.time, monotonic=lambda: self.monotonic)


@pytest.mark.parametrize(
    ("time", "synchronized", "good"),
    [(EARLIEST, True, True), (EARLIEST, False, False), (EARLIEST - 1, True, False), (0.0, True, False)],
)
def test_clock_is_good_when_synchronized_and_plausible(time: float, synchronized: bool, good: bool) -> None:
    machine = Machine()
    machine.time, machine.synchronized = time, synchronized
    assert machine.quality()() is good


def test_kernel_is_queried_at_intervals() -> None:
    machine = Machine()
    quality = machine.quality()
    assert all(quality() for _ in range(1000))
    assert machine.asked == 1
    machine.synchronized = False
    machine.passes(QUERY_INTERVAL_S - 0.01)
    assert quality(), "not asked yet"
    machine.passes(0.01)
    assert not quality()
    assert machine.asked == 2


@pytest.mark.parametrize("step_s", [3e8, 1.1, -1.1, -3e8])
def test_clock_step_queries_the_kernel_at_once(step_s: float) -> None:
    machine = Machine()
    machine.time += 4e8
    quality = machine.quality()
    assert quality()
    machine.synchronized = False
    machine.passes(0.9)
    assert quality()
    machine.time += step_s
    assert not quality()
    assert machine.asked == 2
    assert not quality()
    assert machine.asked == 2


def test_this_kernel_answers() -> None:
    assert kernel_synchronized() in (True, False)


def test_changes_are_reported_with_the_expected_time() -> None:
    machine = Machine()
    machine.time, machine.synchronized = 1000.0, False
    quality = ClockQuality(machine.ask, now=lambda: machine.time, monotonic=lambda: machine.monotonic, boot="b")
    told: list[tuple[ClockReading, ClockReading]] = []
    quality.changes.add(lambda before, after: told.append((before, after)))
    assert quality.reading() == ClockReading("b", 1000 * S, 0, good=False)
    machine.passes(3)
    quality()
    assert not told, "nothing has changed"
    machine.time, machine.synchronized = EARLIEST + 10, True
    quality()
    assert told == [(ClockReading("b", 1003 * S, 3 * S, good=False), quality.reading())]
    machine.passes(QUERY_INTERVAL_S)
    machine.synchronized = False
    quality()
    assert [(before.good, after.good) for before, after in told] == [(False, True), (True, False)]
    assert told[1][0].wall_ns == told[1][1].wall_ns == (int(EARLIEST) + 15) * S


def test_kernel_identifies_this_boot() -> None:
    assert boot_id() == boot_id()
