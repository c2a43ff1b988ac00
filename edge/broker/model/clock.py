"""Age of messages by a wall clock that may be set at any time.

A gateway starts with the last time it knew, or with 1970. Its clock is set once it has a network. So the stamp of a
message is compared with the time of day only when both are from the same clock: the clock was synchronised at both
times, or at neither and was not set in between. A change of the distance between the wall clock and the monotonic clock
shows that the wall clock was set. The distance is stored, so it survives restarts of the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from bridge.message import CLOCK_GOOD, Run
from edge.broker.limits import CLOCK_STEP_S_MAX
from edge.broker.model.isolation import EventListeners

_NS_IN_S: Final = 1_000_000_000


class ClockReading(NamedTuple):
    """Readings of the two clocks of a machine at one moment."""

    boot: str
    """Boot id of the machine: the monotonic clock counts from this boot."""
    wall_ns: int
    """UTC, right or wrong."""
    monotonic_ns: int
    good: bool
    """True when the wall clock is known to be synchronised."""

    @property
    def ahead_ns(self) -> int:
        """Wall clock minus monotonic clock; constant until the wall clock is set."""
        return self.wall_ns - self.monotonic_ns


class WallClock(Protocol):
    """Wall clock of the machine, which may be set at any time."""

    @property
    def changes(self) -> EventListeners[[ClockReading, ClockReading]]:
        """Called when the clock was set, or when it became good or bad. Arguments: the reading that would be shown
        without the change, and the reading now."""
        ...

    def reading(self) -> ClockReading:
        """Return the reading of now."""
        ...


class Steady(msgspec.Struct, frozen=True):
    """Period in which the wall clock was not set: its start, and the distance from the monotonic clock."""

    ahead_ns: int
    since_ns: int
    """UTC, as shown by the clock."""


class MessageClock:
    """Computes the age of messages. It is the `ExpiryClock` of the expiry sweeper."""

    def __init__(
        self, clock_ns: Callable[[], int], clock_good: Callable[[], bool], monotonic_s: Callable[[], float]
    ) -> None:
        self.clock_ns = clock_ns
        """UTC now, nanoseconds."""
        self._clock_good = clock_good
        self._monotonic_s = monotonic_s
        self.steady = Steady(0, 0)
        self.stepped = False
        """True when the clock was set since this or a former process read it first. Then stamps need `now_for`."""
        self.read()
        self.stepped = False

    @property
    def good(self) -> bool:
        """True when the clock was known to be synchronised at the last `read`."""
        return self._good

    def resume(self, steady: Steady) -> None:
        """Continue with the period that a former process stored."""
        self.steady = steady

    def read(self) -> None:
        """Read the clock, and detect whether it was set since the last read.

        A restart of the machine also changes the distance between the clocks, which counts as set. A clock that starts
        with the same time at every boot is the exception: then earlier messages are older than they seem.
        """
        self.now_ns = self.clock_ns()
        self._good = self._clock_good()
        ahead_ns = self.now_ns - int(self._monotonic_s() * _NS_IN_S)
        if abs(ahead_ns - self.steady.ahead_ns) > CLOCK_STEP_S_MAX * _NS_IN_S:
            self.steady = Steady(ahead_ns, self.now_ns)
            self.stepped = True

    def is_expired(self, run: Run, ttl: int) -> bool | None:
        """Return True when the run was older than `ttl` nanoseconds at the last `read`; None when its age is
        unknown."""
        stamped_good = bool(run.flags & CLOCK_GOOD)
        if stamped_good != self._good or (not stamped_good and run.received_at < self.steady.since_ns):
            return None
        return self.now_ns - run.received_at >= ttl

    def age_ns(self, run: Run) -> int:
        """Return the age of the run in nanoseconds; 0 when it is unknown, so that the message is kept."""
        self.read()
        return max(0, self.now_ns - run.received_at) if self.is_expired(run, 0) is not None else 0

    def now_for(self, run: Run) -> int:
        """Return the UTC time that is the age of `run` after its stamp."""
        return run.received_at + self.age_ns(run)
