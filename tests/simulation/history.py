"""Recorded events, in order: the only input of the checker."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from tests.simulation.scheduler import Scheduler


class Event(NamedTuple):
    """Event: `what` names the kind, and `checker` documents the `fields` of each kind."""

    step: int
    at_s: float
    what: str
    fields: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.step:>7} {self.at_s:10.4f} {self.what:<10} {' '.join(map(str, self.fields))}"


class History:
    """List of events that only grows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.events: list[Event] = []
        self._scheduler = scheduler

    def record(self, what: str, *fields: Any) -> None:
        """Record an event. Fields are plain values: text, numbers, and tuples of those."""
        self.events.append(Event(self._scheduler.steps, self._scheduler.now_s, what, fields))

    @property
    def digest(self) -> str:
        """Return a digest that is the same for the same history, in every process."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()
