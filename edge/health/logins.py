"""Logins that wait for their passwords to be verified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from edge.health.counter_rise import CounterRise
from edge.health.problems import FoundProblem, Severity

LOGIN_WAIT_S_MAX: Final = 5.0
"""Seconds that a login has waited for its verification when it becomes a problem: people notice, and devices begin to
connect again."""


class PasswordQueue(Protocol):
    """Queue of logins with passwords to verify."""

    @property
    def waits_s(self) -> float:
        """Seconds for which the oldest login has waited."""
        ...

    @property
    def late(self) -> int:
        """Logins answered "busy" since the start, as they waited too long."""
        ...


def login_problems(gate: PasswordQueue, late_logins: CounterRise) -> Iterator[FoundProblem]:
    """Yield the warning that logins wait now, or waited too long within the last minute."""
    late = late_logins.lately({"late": gate.late} if gate.late else {})
    if late:
        what = "logins wait: within the last minute passwords could not be verified in time"
    elif gate.waits_s >= LOGIN_WAIT_S_MAX:
        what = f"logins wait: a password has waited {gate.waits_s:.0f} s to be verified"
    else:
        return
    step = "the machine is short of processor time: find what uses it (top), and stop it or lower its priority"
    yield FoundProblem("logins", what, step, Severity.WARNING)
