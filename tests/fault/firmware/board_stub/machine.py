"""Module `machine` of MicroPython on a computer: a watchdog that ends the process, and a reset that ends it as well."""

from __future__ import annotations

import os
import signal

EXIT_RESET = 75


class WDT:
    """Watchdog."""

    def __init__(self, timeout: int) -> None:
        self._seconds = int(os.environ.get("WAYPOST_WATCHDOG_S", timeout // 1000))
        self.feed()

    def feed(self) -> None:
        signal.alarm(self._seconds)


def reset() -> None:
    """Reset the board."""
    os._exit(EXIT_RESET)
