"""Signals that stop a hub: the first one in order, a second one at once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

FORWARDED_S_MAX: Final = 1.0
"""Seconds in which another signal belongs to the first one: Ctrl-C reaches a whole group of processes, and a parent
passes it on as SIGTERM a moment later."""
REPEATED_S_MAX: Final = 0.3
"""Seconds in which the same signal belongs to the first one: parents pass SIGINT on as SIGINT, sooner than a person
presses Ctrl-C again."""


class StopSignals:
    """Takes SIGINT and SIGTERM of a hub."""

    def __init__(
        self, stop: asyncio.Event, clock: Callable[[], float], leave: Callable[[int], None] = os._exit
    ) -> None:
        """`stop` is set at the first signal; `clock`: monotonic seconds; `leave` ends the process with a status."""
        self._stop = stop
        self._clock = clock
        self._leave = leave
        self._first: tuple[int, float] | None = None

    def arrived(self, number: int) -> None:
        """Stop in order at the first signal. Exit at once when it comes again after `REPEATED_S_MAX`, or another one
        comes after `FORWARDED_S_MAX`: what is not acknowledged stays at gateways."""
        now_s = self._clock()
        if self._first is None:
            self._first = number, now_s
            self._stop.set()
            return
        first, at_s = self._first
        if now_s - at_s < (REPEATED_S_MAX if number == first else FORWARDED_S_MAX):
            return
        log.warning("second signal: exiting at once; gateways send again what is not acknowledged")
        logging.shutdown()
        self._leave(128 + number)
