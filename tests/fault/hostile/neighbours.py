"""Two clients unrelated to an attack: one of the attacked gateway, and one of another gateway as a control.

The control runs on the same machine at the same time. Attackers are processes too, and take cores. The effect on the
control's client is due to the machine, and no gateway could change it. Only the additional effect on the other client
is due to the gateway.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from tests.fault.hostile.neighbour import Neighbour
from tests.support.processes import Waypost

IDLE_S: Final = 0.5
"""Duration of the measurement without an attack."""
SLOWER_MAX: Final = 3
"""Limit of the slow-down of other clients during an attack."""
ROUND_TRIPS: Final = 20
"""Round trips of each client after an attack began, and before it ends."""
BEGINNING: Final = 100
"""Round trips before the measurement, as the first message loads code."""
ROUNDS: Final = 3
"""Number of attempts: other work on the machine delays clients, so one round without harm is enough."""
FLOOR_S: Final = 0.2
"""Floor below which differences do not count on a machine with two busy cores.

An attacker takes one core, and other tests take the other: 0.02 to 0.13 s were measured then, and 0.17 s without any
attack. Attacks with indivisible work have a higher floor (the end of a connection with 1 000 links, a large message to
400 clients at once).
"""
FULL_SIZE_FLOOR_S: Final = 0.02
"""Floor for the attacks at full size, on a machine without other work: some turns of two cores."""


class Felt(NamedTuple):
    """p99 of round trips, seconds."""

    idle_s: float
    """Round trips at the attacked gateway before the attack."""
    control_s: float
    """Round trips at the control gateway during the attack."""
    attacked_s: float
    """Round trips at the attacked gateway during the attack."""

    def bearable(self, floor_s: float) -> bool:
        """Return whether the p99 stayed below three times its value without the attack, or below `floor_s`.

        The comparison is with the same machine at the same time.
        """
        return self.attacked_s <= max(SLOWER_MAX * max(self.idle_s, self.control_s), floor_s)

    def __str__(self) -> str:
        idle, control, attacked = (f"{each * 1e3:.1f} ms" for each in self)
        return f"p99 {idle} idle, {control} at a gateway that is not attacked, {attacked} at the one that is"


class Neighbours:
    """Both clients, running within the context."""

    def __init__(self, attacked: Waypost, control: Waypost) -> None:
        self._attacked = Neighbour(attacked.port("mqtt"))
        self._control = Neighbour(control.port("mqtt"))
        self._stack = ExitStack()
        self._resting = (0.0, 0.0)

    def rest(self) -> None:
        """Measure round trips without an attack."""
        begin = time.monotonic()
        time.sleep(IDLE_S)  # the time that is measured
        self._attacked.wait(ROUND_TRIPS)
        self._resting = (begin, time.monotonic())

    def felt(self, since: float) -> Felt:
        """Return the round trips since then, by the monotonic clock; both clients are served to the end."""
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
