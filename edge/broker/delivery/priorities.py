"""Which messages of a queue are to be delivered before or after the others (AMQP 1.0 section 3.2.1, `priority`)."""

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
"""The priority of a message that says nothing of it, and of every MQTT message."""
_HIGHEST: Final = 9
"""Ten levels are told apart, as JMS has them (Jakarta Messaging 3.1 section 3.4.10); what is above counts as 9."""


def priority_of(run: Run) -> int:
    """0 (deliver last) to 9 (first), the same for every message of a run."""
    properties = run.properties
    if not properties or not run.flags & AMQP:
        return NORMAL
    return _remembered(properties) if len(properties) <= CACHED_BYTES_MAX else _own(properties)


def _own(header: bytes) -> int:
    return max(0, min(_HIGHEST, read_header(header).priority))


_remembered: Callable[[bytes], int] = lru_cache(maxsize=1024)(_own)


class Priorities:
    """Where the messages of other than normal priority are in the log of a queue: what arrived since the start, and
    what was met when reading. At most `PRIORITY_RANGES_MAX` ranges; beyond it messages keep the place they have."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, Ranges] = {}

    def __bool__(self) -> bool:
        return any(self._levels.values())

    def note(self, priority: int, first: int, last: int) -> bool:
        """Remember these; False when there is no room."""
        level = self._levels.setdefault(priority, Ranges())
        full = sum(map(len, self._levels.values())) >= PRIORITY_RANGES_MAX
        if full and first not in level and first - 1 not in level:
            return False
        level.add(first, last)
        return True

    def remove(self, first: int, last: int) -> None:
        """These are being delivered."""
        for level in self._levels.values():
            if level:
                level.remove(first, last)

    def copy(self) -> dict[int, Ranges]:
        """Every level's ranges, to be used up by one consumer."""
        levels: dict[int, Ranges] = {}
        for priority, level in self._levels.items():
            levels[priority] = Ranges()
            for first, last in level:
                levels[priority].add(first, last)
        return levels
