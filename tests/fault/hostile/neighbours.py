"""Two clients that have nothing to do with an attack: one of the gateway that is attacked, and one of another gateway,
on the same machine at the same moment, that is not: the control.

Attackers are processes too, and take cores. What the control's client feels of that is the machine's doing, and no
gateway could change it; what the other one feels beyond it is the gateway's.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from tests.fault.hostile.neighbour import Neighbour
from tests.support.processes import Waypost

IDLE_S: Final = 1.0
"""For so long nothing happens, and is measured."""
SLOWER_MAX: Final = 3
"""How many times as long as without the attack others may wait during it."""
ROUND_TRIPS: Final = 20
"""That each of the two makes after an attack began, and before it ends."""
BEGINNING: Final = 100
"""Round trips before anything is measured: what a first message loads."""


class Felt(NamedTuple):
    """p99 of round trips, seconds."""

    idle_s: float
    """At the gateway that is attacked, before."""
    control_s: float
    """At the gateway that is not, meanwhile."""
    attacked_s: float
    """At the gateway that is, meanwhile."""

    def bearable(self, floor_s: float) -> bool:
        """Nobody waits longer than three times what it takes without the attack, on this machine at this moment, or
        than `floor_s`."""
        return self.attacked_s <= max(SLOWER_MAX * max(self.idle_s, self.control_s), floor_s)

    def __str__(self) -> str:
        idle, control, attacked = (f"{each * 1e3:.1f} ms" for each in self)
        return f"p99 {idle} idle, {control} at a gateway that is not attacked, {attacked} at the one that is"


class Neighbours:
    """Both, for as long as they are entered."""

    def __init__(self, attacked: Waypost, control: Waypost) -> None:
        self._attacked = Neighbour(attacked.port("mqtt"))
        self._control = Neighbour(control.port("mqtt"))
        self._stack = ExitStack()
        self._resting = (0.0, 0.0)

    def rest(self) -> None:
        """Nothing happens, and it is measured how long round trips take then."""
        begin = time.monotonic()
        time.sleep(IDLE_S)  # the time that is measured
        self._attacked.wait(ROUND_TRIPS)
        self._resting = (begin, time.monotonic())

    def felt(self, since: float) -> Felt:
        """What they felt since then, by the monotonic clock; both are served to the end."""
        self._attacked.wait(ROUND_TRIPS)
        self._control.wait(ROUND_TRIPS)
        end = time.monotonic()
        assert self._attacked.alive, "the neighbour is served all the time"
        idle_s = self._attacked.p99_s(*self._resting)
        return Felt(idle_s, self._control.p99_s(since, end), self._attacked.p99_s(since, end))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in (self._attacked, self._control):
                stack.enter_context(each)
            for each in (self._attacked, self._control):
                each.wait(BEGINNING)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
