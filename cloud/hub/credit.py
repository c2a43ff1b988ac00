"""How many batches each gateway may have on its way: shares of what the hub can hold, so that a fleet does not storm.

A gateway alone may have as many as it can use. Where many have much to send, as after an outage of the hub, what may
wait for the landing is shared among them, less what waits already; each has at least enough for its live readings
beside a little of its backlog. A gateway that only sends as it measures takes no share of the others'.

Those that only do that are the most of a fleet, and their batches are small: what a batch costs whatever is in it is
most of what they cost. So they share a number of batches. A gateway that has little credit gathers for longer, and the
more of them send, the more readings are in each batch.

It knows no landing: it is told when one is over, and that is its only clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from bridge.limits import UPLINK_BATCH_BYTES

BATCHES_MIN: Final = 4
"""Of every gateway with a backlog: one that its uplink keeps for live readings, and three of the backlog, so that one
is on its way while others land."""
BATCHES_MAX: Final = 64
"""Of a gateway alone: with 256 KiB each, 16 MiB, which outlasts a landing at any rate a gateway has."""
MUCH_BYTES: Final = UPLINK_BATCH_BYTES // 2
"""A gateway of which more waits is one with a backlog. Live readings of half a second are less."""
SMALL_BATCHES: Final = 4_000
"""Of all gateways without a backlog of which something waits: about half of what a hub takes in the second between two
landings, some 0.1 ms each. Of all gateways, while nothing of them waits: credit is not taken back, and thousands may
begin at once."""
SMALL_BATCHES_MIN: Final = 2
"""Of each of them: the first of a backlog may leave, and a live reading need not wait until it has landed."""


class Connection(Protocol):
    """What there is to know of a gateway's connection (`bridge.intake.Intake`)."""

    @property
    def waiting_bytes(self) -> int: ...

    @property
    def has_backlog(self) -> bool:
        """Something of a backlog waits."""
        ...

    def share(self, batches: int) -> None:
        """It may have so many on its way."""
        ...


class Shares:
    """Of all connections. On the loop's thread."""

    def __init__(self) -> None:
        self._drawing = 0
        """Connections that had much to send when that was counted, and those that came since."""
        self._new: dict[Connection, None] = {}
        """They came since the last landing: whether they have much to send is not known."""
        self._newer: dict[Connection, None] = {}

    def add(self, connection: Connection, free_bytes: int) -> None:
        """A connection is there. `free_bytes`: what may wait for the landing beside what does."""
        self._newer[connection] = None
        self._drawing += 1
        connection.share(self._of_drawing(free_bytes))

    def remove(self, connection: Connection) -> None:
        """It is gone."""
        self._new.pop(connection, None)
        self._newer.pop(connection, None)

    def landed(self, connections: Iterable[Connection], free_bytes: int) -> None:
        """Something has been landed: share anew among these, which are all."""
        self._new, self._newer = self._newer, {}
        drawing, sending, silent = list[Connection](), list[Connection](), list[Connection]()
        for one in connections:
            (drawing if self._draws(one) else sending if one.waiting_bytes else silent).append(one)
        self._drawing = len(drawing)
        every = len(drawing) + len(sending) + len(silent)
        shares = self._of_drawing(free_bytes), _of_small(len(sending)), _of_small(every)
        for batches, those in zip(shares, (drawing, sending, silent), strict=True):
            for one in those:
                one.share(batches)

    def _draws(self, one: Connection) -> bool:
        """It has much to send, or may have."""
        return one.waiting_bytes > MUCH_BYTES or one.has_backlog or one in self._new

    def _of_drawing(self, free_bytes: int) -> int:
        return _within(max(0, free_bytes) // UPLINK_BATCH_BYTES // max(1, self._drawing), BATCHES_MIN)


def _of_small(gateways: int) -> int:
    return _within(SMALL_BATCHES // max(1, gateways), SMALL_BATCHES_MIN)


def _within(batches: int, batches_min: int) -> int:
    return min(max(batches, batches_min), BATCHES_MAX)
