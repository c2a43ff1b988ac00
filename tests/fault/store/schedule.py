"""Deterministic order of a store's threads: one runs at a time, and a seed chooses which.

A store has threads of its own: one writes, one reads, one moves the log. Here they pass control to each other, and to
the loop's thread, before each call that changes a file and at each wait. One seed thus gives one order of events, and
reproduces each fault.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Final, Generic, TypeVar
from unittest.mock import patch

from edge.broker.store import checkpointer, reader, writer
from tests.contract.store import rig

T = TypeVar("T")

STAYS: Final = (0.0, 0.5, 0.9, 0.98)
"""Probabilities that a thread continues at a switch point: from hardly one step to a whole commit."""
TICK_S: Final = 0.01
"""Step of the threads' clock at each reading."""


class Turn:
    """Right of a thread to run."""

    def __init__(self) -> None:
        self.until: Callable[[], bool] | None = None
        """Condition that it waits for, or None if it can run."""
        self._given = threading.Semaphore(0)

    @property
    def ready(self) -> bool:
        return self.until is None or self.until()

    def give(self) -> None:
        self._given.release()

    def take(self) -> None:
        self._given.acquire()


class Schedule:
    """Created on the loop's thread, which runs first. `begin` is called before the store is opened."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._stays = self._dice.choice(STAYS)
        self._running = Turn()
        self._turns = [self._running]
        self._now = 0.0
        self._called = ctypes.CFUNCTYPE(None)(self.pause)  # C has its address, so this reference keeps it alive

    @contextmanager
    def on(self) -> Iterator[None]:
        """Let stores that are opened in this context use scheduled threads."""
        threads = SimpleNamespace(
            Thread=lambda target, **_: ScheduledThread(self, target),
            Lock=lambda: ScheduledLock(self),
            Event=lambda: ScheduledEvent(self),
        )
        queues = SimpleNamespace(SimpleQueue=lambda: ScheduledQueue[object](self))
        with ExitStack() as stack:
            for module in (writer, reader, checkpointer):
                stack.enter_context(patch.object(module, "threading", threads))
            for module in (writer, reader, rig):
                stack.enter_context(patch.object(module, "queue", queues))
            stack.enter_context(patch.object(writer, "time", SimpleNamespace(perf_counter=self._clock)))
            ctypes.CDLL(os.environ["LD_PRELOAD"]).medium_before_change(self._called)
            yield

    def pause(self) -> None:
        """Let another thread run."""
        if self._dice.random() >= self._stays:
            self._hand_to(self._dice.choice([turn for turn in self._turns if turn.ready]))

    def wait(self, until: Callable[[], bool]) -> None:
        """Let others run until the condition holds."""
        turn = self._running
        turn.until = until
        while not until():
            self._hand_to(self._next())
        turn.until = None

    def add(self, turn: Turn) -> None:
        self._turns.append(turn)

    def end(self, turn: Turn) -> None:
        """End the running thread."""
        self._turns.remove(turn)
        self._running = self._next()
        self._running.give()

    def _next(self) -> Turn:
        ready = [turn for turn in self._turns if turn.ready]
        assert ready, "every thread waits for another"
        return self._dice.choice(ready)

    def _hand_to(self, turn: Turn) -> None:
        before, self._running = self._running, turn
        if turn is not before:
            turn.give()
            before.take()

    def _clock(self) -> float:
        self._now += TICK_S
        return self._now


class ScheduledThread:
    """Replaces `threading.Thread`."""

    def __init__(self, schedule: Schedule, target: Callable[[], object]) -> None:
        self._schedule = schedule
        self._target = target
        self._turn = Turn()
        self._alive = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._alive = True
        self._schedule.add(self._turn)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._alive

    def join(self) -> None:
        self._schedule.wait(lambda: not self._alive)

    def _run(self) -> None:
        self._turn.take()
        try:
            self._target()
        finally:
            self._alive = False
            self._schedule.end(self._turn)


class ScheduledQueue(Generic[T]):
    """Replaces `queue.SimpleQueue`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)

    def get(self, timeout: float | None = None) -> T:
        self._schedule.wait(lambda: bool(self._items))
        return self._items.popleft()


class ScheduledLock:
    """Replaces `threading.Lock`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held = False

    def acquire(self) -> None:
        self._schedule.wait(lambda: not self._held)
        self._held = True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ScheduledEvent:
    """Replaces `threading.Event`; a wait with a timeout may end at any time."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float) -> None:
        self._schedule.pause()
