"""What an intake needs of a driver, without a socket or a loop."""

from __future__ import annotations

from collections.abc import Callable


class Shell:
    """A driver whose turns come when the test says so."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.paused: set[str] = set()
        self.has_place = True
        """For the connection, once its peer has said who it is."""

    def flush_soon(self) -> None:
        """Whoever drives it asks for bytes all the time."""

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
        return self.has_place
