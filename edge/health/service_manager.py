"""Notifications to systemd: ready, keep-alive, stopping (sd_notify(3)).

A timer of the event loop sends the keep-alives. If the loop hangs they stop, and systemd restarts the service
(WatchdogSec=). A separate thread would keep a hanging process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

KEEP_ALIVES_A_PERIOD: Final = 4
"""Keep-alives within systemd's watchdog period, so that some may be late."""


class ServiceManager:
    """Service manager that started this process. Without one, methods do nothing."""

    def __init__(self, environment: Mapping[str, str], *, pid: int | None = None) -> None:
        """`pid`: id of this process, by default from the system."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        watched = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid() if pid is None else pid))
        period = environment.get("WATCHDOG_USEC", "") if watched and self._address else ""
        self.interval_s: float | None = (
            int(period) / 1e6 / KEEP_ALIVES_A_PERIOD if period.isdecimal() and int(period) else None
        )
        """Seconds between two keep-alives; None: systemd expects none."""
        self._timer: asyncio.TimerHandle | None = None

    def notify_ready(self, works: Callable[[], bool]) -> None:
        """Report that the process is ready, and send keep-alives from the running loop until `stop`, while `works`
        returns True."""
        self._send("READY=1")
        if self.interval_s is not None:
            self._keep_alive(asyncio.get_running_loop(), self.interval_s, works)

    def stop(self) -> None:
        """Report that the process is stopping."""
        if self._timer is not None:
            self._timer.cancel()
        self._send("STOPPING=1")

    def _keep_alive(self, loop: asyncio.AbstractEventLoop, seconds: float, works: Callable[[], bool]) -> None:
        if works():
            self._send("WATCHDOG=1")
        self._timer = loop.call_later(seconds, self._keep_alive, loop, seconds, works)

    def _send(self, words: str) -> None:
        """Send a datagram. A lost one does not matter, as the next one replaces it."""
        if not self._address:
            return
        abstract = self._address.startswith("@")
        address = "\0" + self._address[1:] if abstract else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(words.encode(), address)
