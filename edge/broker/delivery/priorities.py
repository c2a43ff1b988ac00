"""Priorities of messages in a queue (AMQP 1.0 section 3.2.1, `priority`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from bridge.message import AMQP, Run
from edge.broker.limits import PRIORITY_RANGES_MAX
from edge.broker.message.time_to_live import CACHED_BYTES_MAX
from edge.broker.message.translation import read_header
from edge.broker.model.ranges import Ranges

NORMAL: Final = 4
"""Priority of messages without one, and of every MQTT message."""
_HIGHEST: Final = 9
"""Highest of ten levels, as in JMS (Jakarta Messaging 3.1 section 3.4.10); higher values count as 9."""


def priority_of(run: Run) -> int:
    """Return 0 (deliver last) to 9 (first), the same for every message of a run."""
    properties = run.properties
    if not properties or not run.flags & AMQP:
        return NORMAL
    return _remembered(properties) if len(properties) <= CACHED_BYTES_MAX else _own(properties)


def _own(header: bytes) -> int:
    return max(0, min(_HIGHEST, read_header(header).priority))


_remembered: Callable[[bytes], int] = lru_cache(maxsize=1024)(_own)


class Priorities:
    """Positions of messages with other than normal priority in the log of a queue.

    They are known for messages that arrived since the start, or that were read. There are at most `PRIORITY_RANGES_MAX`
    ranges; further messages are delivered in order of arrival.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, Ranges] = {}

    def __bool__(self) -> bool:
        return any(self._levels.values())

    def note(self, priority: int, first: int, last: int) -> bool:
        """Remember these positions. Return False when the table is full."""
        level = self._levels.setdefault(priority, Ranges())
        full = sum(map(len, self._levels.values())) >= PRIORITY_RANGES_MAX
        if full and first not in level and first - 1 not in level:
            return False
        level.add(first, last)
        return True

    def remove(self, first: int, last: int) -> None:
        """Forget positions that are being delivered."""
        for level in self._levels.values():
            if level:
                level.remove(first, last)

    def copy(self) -> dict[int, Ranges]:
        """Return a copy of the ranges of every level, for one consumer."""
        levels: dict[int, Ranges] = {}
        for priority, level in self._levels.items():
            levels[priority] = Ranges()
            for first, last in level:
                levels[priority].add(first, last)
        return levels
