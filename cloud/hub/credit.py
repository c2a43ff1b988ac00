"""How many batches each gateway may have on its way: shares of what the hub can hold, so that a fleet does not storm.

A gateway alone may have as many as it can use. Where many have much to send, as after an outage of the hub, what may
wait for the landing is shared among them, less what waits already; each has at least enough for its live readings
beside a little of its backlog. A gateway that only sends as it measures takes no share of the others'.

It knows no landing: it is told when one is over, and that is its only clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from bridge.limits import UPLINK_BATCH_BYTES

BATCHES_MIN: Final = 4
"""Of every gateway: one that its uplink keeps for live readings, and three of a backlog, so that one is on its way
while others land."""
BATCHES_MAX: Final = 64
"""Of a gateway alone: with 256 KiB each, 16 MiB, which outlasts a landing at any rate a gateway has."""
MUCH_BYTES: Final = UPLINK_BATCH_BYTES // 2
"""A gateway of which more waits is one with a backlog. Live readings of half a second are less."""


class Connection(Protocol):
    """What there is to know of a gateway's connection (`bridge.intake.Intake`)."""

    @property
    def waiting_bytes(self) -> int: ...

    def share(self, batches: int) -> None:
        """It may have so many on its way."""
        ...


class Shares:
    """Of all connections. On the loop's thread."""

    def __init__(self) -> None:
        self._batches = BATCHES_MAX
        self._drawing = 0
        """Connections that had much to send when that was counted, and those that came since."""
        self._new: dict[Connection, None] = {}
        """They came since the last landing: whether they have much to send is not known."""
        self._newer: dict[Connection, None] = {}

    def add(self, connection: Connection, free_bytes: int) -> None:
        """A connection is there. `free_bytes`: what may wait for the landing beside what does."""
        self._newer[connection] = None
        self._drawing += 1
        connection.share(self._each(free_bytes))

    def remove(self, connection: Connection) -> None:
        """It is gone."""
        self._new.pop(connection, None)
        self._newer.pop(connection, None)

    def landed(self, connections: Iterable[Connection], free_bytes: int) -> None:
        """Something has been landed: share anew among these, which are all."""
        self._new, self._newer = self._newer, {}
        every = list(connections)
        self._drawing = sum(1 for one in every if one.waiting_bytes > MUCH_BYTES or one in self._new)
        batches = self._each(free_bytes)
        if batches == self._batches == BATCHES_MAX and not self._new:
            return
        self._batches = batches
        for one in every:
            one.share(batches)

    def _each(self, free_bytes: int) -> int:
        batches = max(0, free_bytes) // UPLINK_BATCH_BYTES // max(1, self._drawing)
        return min(max(batches, BATCHES_MIN), BATCHES_MAX)
