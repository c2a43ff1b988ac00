"""What a service tells systemd: that it serves, and again and again that it still does (sd_notify(3)).

The word goes out from a timer of the event loop, and from nowhere else: a loop that no longer turns says nothing, and
systemd ends and starts the service (WatchdogSec=). A thread that went on beside a dead loop would keep it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

WORDS_A_PERIOD: Final = 4
"""Of the time systemd waits for a word, so many parts pass between two: some may come late."""


class ServiceManager:
    """The service manager that started this process. Where there is none, nothing is told."""

    def __init__(self, environment: Mapping[str, str], *, pid: int | None = None) -> None:
        """`pid`: of this process; None: ask."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        watched = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid() if pid is None else pid))
        period = environment.get("WATCHDOG_USEC", "") if watched and self._address else ""
        self.word_s: float | None = int(period) / 1e6 / WORDS_A_PERIOD if period.isdecimal() and int(period) else None
        """Seconds between two words; None: systemd waits for none."""
        self._timer: asyncio.TimerHandle | None = None

    def serves(self, works: Callable[[], bool]) -> None:
        """Say that clients are served, and say so until `stop`, for as long as `works` is true and the running loop
        turns."""
        self._tell("READY=1")
        if self.word_s is not None:
            self._word(asyncio.get_running_loop(), self.word_s, works)

    def stop(self) -> None:
        """Say that it ends because it was told to."""
        if self._timer is not None:
            self._timer.cancel()
        self._tell("STOPPING=1")

    def _word(self, loop: asyncio.AbstractEventLoop, seconds: float, works: Callable[[], bool]) -> None:
        if works():
            self._tell("WATCHDOG=1")
        self._timer = loop.call_later(seconds, self._word, loop, seconds, works)

    def _tell(self, words: str) -> None:
        """A datagram; one that nobody takes is lost, and the next one says the same."""
        if not self._address:
            return
        abstract = self._address.startswith("@")
        address = "\0" + self._address[1:] if abstract else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(words.encode(), address)
