"""Threads of which one runs at a time: the seed decides at each step which one continues.

A *step* is the time between two operations on something that the threads share. A thread that is never chosen again
stalls, as a stopped process does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 60.0
"""Longest real time of a step: a thread that takes longer waits for another, which must not happen."""


class Killed(BaseException):
    """The process of this thread has ended here."""


class Turn:
    """One thread. Its function may call `step` only on this thread."""

    def __init__(self, work: Callable[[Turn], None]) -> None:
        self._work = work
        self._continues = threading.Event()
        self._waits = threading.Event()
        self._killed = False
        self.ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._await()

    def advance(self) -> None:
        """Let the thread run until its next step, or its end."""
        self._waits.clear()
        self._continues.set()
        self._await()

    def kill(self) -> None:
        """End the thread where it is."""
        self._killed = True
        while not self.ended:
            self.advance()

    def step(self) -> None:
        """Wait until this thread is chosen. Raises `Killed`."""
        if not self._killed:
            self._continues.clear()
            self._waits.set()
            self._continues.wait()
        if self._killed:
            raise Killed

    def is_mine(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def _await(self) -> None:
        if not self._waits.wait(WAIT_S):
            raise TimeoutError("a hub waits for another one within a step")

    def _run(self) -> None:
        try:
            self.step()
            self._work(self)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._waits.set()
