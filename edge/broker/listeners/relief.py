"""Relief of a pool of memory: pause its connections before the pool is full, so that one of them can finish.

Each address space has a pool of its own. A pool that is nearly full pauses only its own connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

from bridge.transport.driver import ConnectionDriver
from edge.broker.limits import ADMISSION_CHECK_S, STRAINED_CHECK_S, STRAINED_S_MAX, STRAINED_SHARE
from edge.broker.model.budget import MemoryAccount

NO_MEMORY: Final = "memory limit: other connections have to complete their packets first"


class TimeSlices:
    """Runs steps in time slices, one slice in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: Iterator[None] | None = None

    def start(self, steps: Iterator[None]) -> None:
        """Run these steps, unless others are running."""
        if self._steps is None:
            self._steps = steps
            self._run_slice()

    def _run_slice(self) -> None:
        until = time.monotonic() + ADMISSION_CHECK_S
        steps, self._steps = self._steps, None
        for _ in steps or ():
            if time.monotonic() > until:
                self._steps = steps
                self._loop.call_soon(self._run_slice)
                return


class PoolRelief:
    """Relief of one pool of authenticated connections. Create it inside a running loop."""

    def __init__(self, pool: MemoryAccount, shed: Callable[[MemoryAccount, int], None]) -> None:
        """`shed` closes connections of an account with the most memory until it holds at most that many bytes."""
        self.pool: Final = pool
        self._shed = shed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = None
        """Time since which the pool is nearly full; None: it is not."""
        self._paused: set[ConnectionDriver] = set()
        self._slices = TimeSlices(self._loop)

    @property
    def needed(self) -> bool:
        """True while connections of the pool hold memory or are paused."""
        return bool(self.pool.bytes or self._paused)

    def check_soon(self) -> None:
        """Run `run` in a moment if the pool is nearly full."""
        if self._timer is None and self._nearly_full:
            self._timer = self._loop.call_later(STRAINED_CHECK_S, self.run)

    def run(self) -> None:
        """Update the memory of all holders of the pool, then pause or resume its connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slices.start(self._count_holders())

    def stop(self) -> None:
        """Forget the pool, which is removed."""
        if self._timer is not None:
            self._timer.cancel()

    def forget(self, driver: ConnectionDriver) -> None:
        """Forget a connection that has ended."""
        self._paused.discard(driver)

    @property
    def _nearly_full(self) -> bool:
        return self.pool.bytes > nearly_full_at(self.pool)

    def _count_holders(self) -> Iterator[None]:
        for driver in list(self.pool.all_holders()):
            driver.count()
            yield
        if self._nearly_full:
            yield from self._pause_all_but_largest()
            return
        self._since = None
        while self._paused and not self._nearly_full:
            self._paused.pop().resume_reading(NO_MEMORY)
            yield

    def _pause_all_but_largest(self) -> Iterator[None]:
        """Pause all connections of the largest account except the largest one, so that it can complete its packet.

        After `STRAINED_S_MAX` close connections instead.
        """
        pool, now = self.pool, self._loop.time()
        if self._since is None:
            self._since = now
        elif now - self._since > STRAINED_S_MAX:
            self._since = now
            self._shed(pool, nearly_full_at(pool))
            return
        largest, *others = pool.largest_holder().holders_by_size()
        self._paused.discard(largest)
        largest.resume_reading(NO_MEMORY)
        for driver in others:
            if driver.account is not None and driver not in self._paused:  # it may have ended in the meantime
                driver.pause_reading(NO_MEMORY)
                self._paused.add(driver)
                yield


def nearly_full_at(account: MemoryAccount) -> int:
    """Return the bytes above which an account is nearly full."""
    return account.bytes_max - account.bytes_max // STRAINED_SHARE
