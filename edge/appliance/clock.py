"""Quality of this machine's clock: a Raspberry Pi has no battery and starts with a time in the past."""

from __future__ import annotations

import ctypes
import datetime
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.broker.model.clock import ClockReading
from edge.broker.model.isolation import EventListeners

TIMEX_BYTES = 512
"""Size of the buffer for the kernel's struct timex (208 bytes on 64-bit Linux), which is not read."""

TIME_ERROR = 5
"""Result of adjtimex(2) while no time service synchronizes the clock."""

EARLIEST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
"""The program did not exist before this date: an earlier clock is wrong, whatever the kernel reports."""

QUERY_INTERVAL_S = 5.0
"""Shortest time between two queries of the kernel: the quality is part of every message."""

STEP_S_MAX = 1.0
"""Difference to the monotonic clock beyond which the clock was set. The kernel is then queried at once, as its last
answer was about another time. A time service moves a clock by 0.5 ms a second at most."""

STEPPED_S = 60.0
"""Time for which a step of the clock is reported."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Linux's identifier of this boot of the machine (random(4))."""


def boot_id() -> str:
    """Return an identifier of this boot; without one from the system, a new one for each start of the program."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return uuid.uuid4().hex


def kernel_synchronized() -> bool:
    """Return True when the kernel reports a synchronized clock (adjtimex(2)), False when it cannot be queried."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return False
    state = int(adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))
    return 0 <= state < TIME_ERROR


class ClockQuality:
    """Track whether the clock is good. Queries are cheap, as one is made for every message."""

    def __init__(
        self,
        synchronized: Callable[[], bool] = kernel_synchronized,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boot: str | None = None,
    ) -> None:
        """`boot`: identifier of the boot since which `monotonic` counts; None: read it from the kernel."""
        self.changes: EventListeners[[ClockReading, ClockReading]] = EventListeners("changes of the clock")
        """Listeners for steps of the clock and changes of its quality: (reading without the change, reading now).
        They are called before the next message is stamped."""
        self._boot = boot_id() if boot is None else boot
        self._synchronized = synchronized
        self._now = now
        self._monotonic = monotonic
        self._asked_at = float("-inf")
        self._shown_s = 0.0
        """Clock reading when the kernel was last queried."""
        self._good = False
        self._stepped_at = float("-inf")

    def __call__(self) -> bool:
        """Return True when the clock is past `EARLIEST` and synchronized.

        The answer is at most `QUERY_INTERVAL_S` old, and never from before a step.
        """
        at, now = self._monotonic(), self._now()
        passed = at - self._asked_at
        stepped = abs(now - self._shown_s - passed) > STEP_S_MAX
        if passed < QUERY_INTERVAL_S and not stepped:
            return self._good
        before = self._reading(self._shown_s + passed, at) if self._shown_s else None
        self._asked_at, self._shown_s = at, now
        self._good = now >= EARLIEST and self._synchronized()
        if before is not None and stepped:
            self._stepped_at = at
        if before is not None and (stepped or before.good != self._good):
            self.changes.notify(before, self._reading(now, at))
        return self._good

    def reading(self) -> ClockReading:
        """Return the current reading."""
        self()
        return self._reading(self._now(), self._monotonic())

    def _reading(self, now_s: float, monotonic_s: float) -> ClockReading:
        return ClockReading(self._boot, int(now_s * 1e9), int(monotonic_s * 1e9), self._good)

    @property
    def stepped_lately(self) -> bool:
        """True when the clock was set within the last `STEPPED_S`."""
        return self._monotonic() - self._stepped_at < STEPPED_S
