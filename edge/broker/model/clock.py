"""A clock that may be set at any time: what it tells of the age of a message, and when it tells nothing.

A gateway starts with the time it last knew, or with 1970, and is set once it has a network. So the stamp of a message
and the time of day are compared only when both are of the same clock: known to be kept right when the message came and
now, or never known to be, and not set in between. What tells that it was set is its distance from the clock that counts
from the machine's start, which nobody sets; it is kept over restarts of the gateway.
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
    """What a machine's two clocks show at one moment."""

    boot: str
    """The machine's start, since which the one counts that nobody sets."""
    wall_ns: int
    """UTC, right or wrong."""
    monotonic_ns: int
    good: bool
    """The clock is known to be kept right."""

    @property
    def ahead_ns(self) -> int:
        """How far the two are from each other: as long as nobody sets the clock this stays as it is."""
        return self.wall_ns - self.monotonic_ns


class WallClock(Protocol):
    """The machine's clock, which may be set at any time."""

    @property
    def changes(self) -> EventListeners[[ClockReading, ClockReading]]:
        """Told when it was set, or is good from now on or no longer: what it would show now had nothing changed, and
        what it shows."""
        ...

    def reading(self) -> ClockReading:
        """What it shows now."""
        ...


class Steady(msgspec.Struct, frozen=True):
    """Since when a clock was not set, and what tells so: how far it is from the one of the machine's start, which
    nobody sets."""

    ahead_ns: int
    since_ns: int
    """UTC, as the clock shows it."""


class MessageClock:
    """Says how old messages are. It is the sweeper's `Judge`."""

    def __init__(
        self, clock_ns: Callable[[], int], clock_good: Callable[[], bool], monotonic_s: Callable[[], float]
    ) -> None:
        self.clock_ns = clock_ns
        """UTC now, nanoseconds."""
        self._clock_good = clock_good
        self._monotonic_s = monotonic_s
        self.steady = Steady(0, 0)
        self.stepped = False
        """It was set since a former process or this one looked at it first: stamps need `now_for`."""
        self.read()
        self.stepped = False

    def resume(self, steady: Steady) -> None:
        """Go on from what a former process found."""
        self.steady = steady

    def read(self) -> None:
        """Look at the clock, and whether it was set since it was last looked at.

        Only being set tells: after a restart of the machine the two differ by something else, too. Where a clock begins
        with the same time at every start, they do not; then what came before is older than it seems.
        """
        self.now_ns = self.clock_ns()
        self._good = self._clock_good()
        ahead_ns = self.now_ns - int(self._monotonic_s() * _NS_IN_S)
        if abs(ahead_ns - self.steady.ahead_ns) > CLOCK_STEP_S_MAX * _NS_IN_S:
            self.steady = Steady(ahead_ns, self.now_ns)
            self.stepped = True

    def over(self, run: Run, ttl: int) -> bool | None:
        """True when `ttl` nanoseconds had passed since the run came when the clock was last `read`; None when no clock
        can tell."""
        stamped_good = bool(run.flags & CLOCK_GOOD)
        if stamped_good != self._good or (not stamped_good and run.received_at < self.steady.since_ns):
            return None
        return self.now_ns - run.received_at >= ttl

    def age_ns(self, run: Run) -> int:
        """Nanoseconds since the run came; 0 when no clock can tell: a message is rather kept than taken for old."""
        self.read()
        return max(0, self.now_ns - run.received_at) if self.over(run, 0) is not None else 0

    def now_for(self, run: Run) -> int:
        """UTC, such that the time since `run` came is its age."""
        return run.received_at + self.age_ns(run)
