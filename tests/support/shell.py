"""Driver for an intake, without a socket or a loop."""

from __future__ import annotations

from collections.abc import Callable


class Shell:
    """Driver that runs its turns on demand."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.paused: set[str] = set()
        self.has_slot = True
        """The connection is accepted after the peer has authenticated."""

    def flush_soon(self) -> None:
        """Ignore the request: the test reads output all the time."""

    def soon(self, callback: Callable[[], None]) -> None:
        self.steps.append(callback)

    def turn(self) -> None:
        steps, self.steps = self.steps, []
        for step in steps:
            step()

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.discard(reason)

    def identified(self, user: str) -> bool:
        return self.has_slot
