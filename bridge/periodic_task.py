"""Task that repeats its work until it is stopped, and outlives each fault of the work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable


class PeriodicTask:
    """Repeats `work`, with a pause after each time. A fault is logged once, until it is over or another one comes."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[float | None]],
        interval_s: float,
        *,
        log: logging.Logger,
        failed: str,
        expected: tuple[type[Exception], ...] = (),
        wait: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`work` may return the seconds until the next time, which are `interval_s` otherwise and after a fault;
        `failed`: what does not happen then, for the log; `expected`: exceptions that are logged without a traceback;
        `wait` pauses for some seconds, or less when there is a reason to look earlier."""
        self.trouble: str | None = None
        """Reason why the work failed the last time; None if it did not."""
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._log = log
        self._failed = failed
        self._expected = expected
        self._wait = wait
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task in the running loop; the work begins at once."""
        self._task = asyncio.get_running_loop().create_task(self._repeat(), name=self._name)

    def cancel(self) -> None:
        """Cancel the task, and do not wait for its end. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the task, and wait for its end. Idempotent. What runs in a thread goes on there."""
        task, self._task = self._task, None
        await end_task(task)

    def note_success(self) -> None:
        """End the trouble while work is in progress that goes on for long."""
        self.trouble = None

    async def _repeat(self) -> None:
        while True:
            pause_s = None
            try:
                pause_s = await self._work()
            except Exception as error:  # the work is tried again after any fault
                self._note(error)
            else:
                self.trouble = None
            await self._wait(self._interval_s if pause_s is None else pause_s)

    def _note(self, error: Exception) -> None:
        expected = isinstance(error, self._expected)
        why = str(error) if expected else f"internal error: {type(error).__name__}"
        if why != self.trouble:
            self._log.warning("%s: %s", self._failed, why, exc_info=None if expected else error)
        self.trouble = why


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it has ended; None: it was not started, or has ended. Raises what it has raised."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def wait_and_clear(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, at most for some seconds, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
