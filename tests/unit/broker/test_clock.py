"""Age of messages under a clock that may be set."""

from __future__ import annotations

import pytest

from bridge.message import CLOCK_GOOD, Run
from edge.broker.limits import CLOCK_STEP_S_MAX
from edge.broker.model.clock import MessageClock

S = 1_000_000_000
START = 1_800_000_000 * S
YEARS = 10 * 31_556_952 * S


class Machine:
    """A wall clock, a monotonic clock, and the state of the wall clock."""

    def __init__(self, *, good: bool) -> None:
        self.now, self.monotonic_s, self.good = START, 100.0, good
        self.clock = MessageClock(lambda: self.now, lambda: self.good, lambda: self.monotonic_s)

    def passes(self, seconds: float) -> None:
        self.now += int(seconds * S)
        self.monotonic_s += seconds

    def message(self) -> Run:
        return Run("a", "d", CLOCK_GOOD if self.good else 0, b"", [b"x"], self.now)


@pytest.mark.parametrize("good", [True, False])
def test_steady_clock_gives_the_age(good: bool) -> None:
    machine = Machine(good=good)
    run = machine.message()
    machine.passes(60)
    assert machine.clock.age_ns(run) == 60 * S
    assert machine.clock.is_expired(run, 60 * S) is True
    assert machine.clock.is_expired(run, 60 * S + 1) is False
    assert not machine.clock.stepped


@pytest.mark.parametrize("step", [YEARS, -YEARS])
@pytest.mark.parametrize(("before", "after"), [(False, False), (True, False), (False, True)])
def test_clock_that_was_set_gives_no_age_of_earlier_messages(step: int, before: bool, after: bool) -> None:
    machine = Machine(good=before)
    run = machine.message()
    machine.passes(60)
    machine.now += step
    machine.good = after
    assert machine.clock.age_ns(run) == 0
    assert not machine.clock.is_expired(run, 1)
    assert machine.clock.stepped
    assert machine.clock.now_for(run) == run.received_at
    later = machine.message()
    machine.passes(5)
    assert machine.clock.age_ns(later) == 5 * S


def test_synchronised_clock_is_trusted() -> None:
    machine = Machine(good=True)
    run = machine.message()
    machine.now += YEARS
    assert machine.clock.age_ns(run) == YEARS


@pytest.mark.parametrize(("beyond_s", "stepped"), [(-0.1, False), (0.1, True)])
def test_step_is_larger_than_the_slew_of_time_services(beyond_s: float, stepped: bool) -> None:
    machine = Machine(good=False)
    machine.now += int((CLOCK_STEP_S_MAX + beyond_s) * S)
    machine.clock.read()
    assert machine.clock.stepped is stepped


def test_result_of_an_earlier_process_counts() -> None:
    machine = Machine(good=False)
    run = machine.message()
    again = MessageClock(lambda: machine.now, lambda: machine.good, lambda: machine.monotonic_s)
    again.resume(machine.clock.steady)
    machine.passes(10)
    assert again.age_ns(run) == 10 * S
    machine.now += YEARS
    third = MessageClock(lambda: machine.now, lambda: machine.good, lambda: machine.monotonic_s)
    third.resume(again.steady)
    assert third.age_ns(run) == 0
    assert third.stepped
