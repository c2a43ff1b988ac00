"""Messages that a subscription has in memory, to be delivered next."""

from __future__ import annotations

from collections import deque
from typing import Final

from bridge.message import Stored
from edge.broker.delivery.consumer_group import part_of

_EMPTY: Final[deque[Stored]] = deque()
"""Shared by all empty buffers: a deque takes 760 bytes, and most subscriptions have no consumer."""


class Buffer:
    """Runs in the order of their delivery, and the bytes of their messages."""

    __slots__ = ("bytes", "runs")

    def __init__(self) -> None:
        self.bytes = 0
        self.runs = _EMPTY
        """Only changed by this class."""

    def add(self, stored: Stored, first: int, last: int) -> None:
        """Append the messages at positions ``first..last`` of a stored run."""
        part = part_of(stored, first - stored.position, last - stored.position + 1)
        if self.runs is _EMPTY:
            self.runs = deque()
        self.runs.append(part)
        self.bytes += part.run.size

    def take(self, count: int) -> Stored:
        """Remove the first `count` messages, all of the first run at most."""
        stored = self.runs.popleft()
        total = len(stored.run.bodies)
        if count < total:
            self.runs.appendleft(part_of(stored, count, total))
            stored = part_of(stored, 0, count)
        self.bytes -= stored.run.size
        return stored

    def restore(self, runs: list[Stored]) -> None:
        """Put runs that were taken back in front, in order."""
        if self.runs is _EMPTY:
            self.runs = deque()
        self.runs.extendleft(reversed(runs))
        self.bytes += sum(stored.run.size for stored in runs)

    def clear(self) -> None:
        self.runs = _EMPTY
        self.bytes = 0
