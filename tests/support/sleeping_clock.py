"""A clock that only sleeping advances, for downloads without waiting."""

from __future__ import annotations

from collections.abc import Callable

NOON = 12 * 3600.0
"""Time at which it begins, in seconds."""


class Clock:
    """Clock that only sleeping advances. `slept` is called after each sleep."""

    def __init__(self, at: float = NOON) -> None:
        self.at = at
        self.naps: list[float] = []
        self.slept: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.at

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.naps.append(seconds)
        assert len(self.naps) < 10_000
        self.slept()
