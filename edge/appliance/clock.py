"""Whether this machine's clock can be believed: a Pi has no battery behind it and starts somewhere in the past."""

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
"""Room for the kernel's struct timex (208 bytes on 64-bit Linux), which we do not look into."""

TIME_ERROR = 5
"""What adjtimex(2) returns while nothing synchronizes the clock."""

EARLIEST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
"""This program did not exist before: a clock that says so is wrong, whatever the kernel believes."""

ASKED_AGAIN_S = 5.0
"""The kernel is asked at most this often: the answer goes into every message."""

STEP_S_MAX = 1.0
"""A clock that went further than this against the one of the machine's start was set, and the kernel is asked at once:
what it said before is about another time. Clocks kept right are moved by 0.5 ms a second."""

STEPPED_S = 60.0
"""How long it is told that the clock was set."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""What Linux calls this start of the machine (random(4))."""


def boot_id() -> str:
    """Another one at each start of the machine; where nobody says, at each start of the program."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return uuid.uuid4().hex


def kernel_synchronized() -> bool:
    """True when the kernel says that a time service keeps its clock right (adjtimex(2)); false where it cannot say."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return False
    state = int(adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))
    return 0 <= state < TIME_ERROR


class ClockQuality:
    """Answers "is the clock good" cheaply, for as long as the program runs."""

    def __init__(
        self,
        synchronized: Callable[[], bool] = kernel_synchronized,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boot: str | None = None,
    ) -> None:
        """`boot`: this start of the machine, since which `monotonic` counts; None: as the kernel says."""
        self.changes: EventListeners[[ClockReading, ClockReading]] = EventListeners("changes of the clock")
        """Told when the clock was set, and when it becomes good or is no longer: what it would show now had nothing
        changed, and what it shows. Before a message is stamped by it."""
        self._boot = boot_id() if boot is None else boot
        self._synchronized = synchronized
        self._now = now
        self._monotonic = monotonic
        self._asked_at = float("-inf")
        self._told = 0.0
        """What the clock showed when the kernel was asked."""
        self._good = False
        self._stepped_at = float("-inf")

    def __call__(self) -> bool:
        """True when the clock is past `EARLIEST` and synchronized; at most `ASKED_AGAIN_S` old, and of this time."""
        at, now = self._monotonic(), self._now()
        passed = at - self._asked_at
        stepped = abs(now - self._told - passed) > STEP_S_MAX
        if passed < ASKED_AGAIN_S and not stepped:
            return self._good
        before = self._reading(self._told + passed, at) if self._told else None
        self._asked_at, self._told = at, now
        self._good = now >= EARLIEST and self._synchronized()
        if before is not None and stepped:
            self._stepped_at = at
        if before is not None and (stepped or before.good != self._good):
            self.changes.tell(before, self._reading(now, at))
        return self._good

    def reading(self) -> ClockReading:
        """What it shows now."""
        self()
        return self._reading(self._now(), self._monotonic())

    def _reading(self, now_s: float, monotonic_s: float) -> ClockReading:
        return ClockReading(self._boot, int(now_s * 1e9), int(monotonic_s * 1e9), self._good)

    @property
    def stepped_lately(self) -> bool:
        """True when it was set within the last `STEPPED_S`."""
        return self._monotonic() - self._stepped_at < STEPPED_S
