"""Whether this machine's clock can be believed: a Pi has no battery behind it and starts somewhere in the past."""

from __future__ import annotations

import ctypes
import datetime
import time
from collections.abc import Callable

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
    ) -> None:
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
        if stepped and self._told:
            self._stepped_at = at
        if passed >= ASKED_AGAIN_S or stepped:
            self._asked_at, self._told = at, now
            self._good = now >= EARLIEST and self._synchronized()
        return self._good

    @property
    def stepped_lately(self) -> bool:
        """True when it was set within the last `STEPPED_S`."""
        return self._monotonic() - self._stepped_at < STEPPED_S
