"""Virtual time and the queue of all events: each has a time, and the seed decides the order.

A *step* is one event of this queue: a callback of an event loop, arriving bytes, the end of a commit, a fault.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

START_S = 1_000.0
"""Start of virtual time: monotonic clocks do not start at 0."""


class Process:
    """Process that can be killed: its scheduled events then no longer happen."""

    __slots__ = ("alive", "clock_offset_ns", "loop", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.clock_offset_ns = 0
        """Offset of its wall clock."""
        self.loop: Any = None
        """Its event loop, or None if it needs none."""


class Handle:
    """Event; serves its caller as `asyncio.TimerHandle`."""

    __slots__ = ("args", "callback", "cancelled_", "context", "process", "when_s")

    def __init__(
        self, when_s: float, process: Process, callback: Callable[..., object], args: tuple[Any, ...], context: Any
    ) -> None:
        self.when_s = when_s
        self.process = process
        self.callback = callback
        self.args = args
        self.context: Context | None = context
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self.when_s


class Scheduler:
    """Runs events by time, and in the order of scheduling where times are equal."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.steps = 0
        self.process = Process("nobody")
        """Process of the running event."""
        self.switched: Callable[[Process], None] = lambda _process: None
        """Called before an event of a process other than the last one."""
        self.raised: Callable[[Process, BaseException], None] = _reraise
        """Called with each exception that an event raised."""
        self._ready: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []
        self._count = 0

    def at(
        self, when_s: float, process: Process, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        """Run a callback at this time, or next if the time has passed."""
        handle = Handle(when_s, process, callback, args, context)
        if when_s <= self.now_s:
            self._ready.append(handle)
        else:
            self._count += 1
            heapq.heappush(self._later, (when_s, self._count, handle))
        return handle

    def after(self, delay_s: float, process: Process, callback: Callable[..., object], *args: Any) -> Handle:
        """Run a callback after this many seconds."""
        return self.at(self.now_s + delay_s, process, callback, *args)

    def run(self, until_s: float, steps_max: int) -> None:
        """Run events up to a time; raise RuntimeError when the total number of steps exceeds the limit."""
        ready, later = self._ready, self._later
        while True:
            if ready:
                handle = ready.popleft()
            elif later and later[0][0] <= until_s:
                when_s, _, handle = heapq.heappop(later)
                if handle.cancelled_ or not handle.process.alive:
                    continue
                self.now_s = max(when_s, self.now_s)
            else:
                break
            process = handle.process
            if handle.cancelled_ or not process.alive:
                continue
            self.steps += 1
            if self.steps > steps_max:
                raise RuntimeError(f"{steps_max} steps, and no end: something turns in circles")
            self.enter(process)
            try:
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # as in an event loop, an error in one callback does not affect the next
                self.raised(process, error)
        self.now_s = max(self.now_s, until_s)

    def enter(self, process: Process) -> None:
        """Attribute everything that runs from here on to this process."""
        if process is not self.process:
            self.process = process
            self.switched(process)


def _reraise(_process: Process, error: BaseException) -> None:
    raise error
