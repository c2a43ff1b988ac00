"""Credit: how many batches each gateway may have in flight, so that a fleet does not overload the hub.

A gateway alone may use the maximum. Gateways with a backlog, as after an outage of the hub, share the free room before
the landing. Each has at least enough for its live readings and a little of its backlog. A gateway that only sends live
readings takes nothing from that share.

Most gateways of a fleet only send live readings, in small batches, and most of the cost of a small batch is per batch.
So these gateways share a fixed number of batches. A gateway with little credit gathers for longer: the more gateways
send, the more readings are in each batch.

The module does not know the landing. Its only clock is the call after each landing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from bridge.limits import UPLINK_BATCH_BYTES

BATCHES_MIN: Final = 4
"""Batches of a gateway with a backlog: one for live readings, and three of the backlog, so that one is on its way while
others land."""
BATCHES_MAX: Final = 64
"""Batches of a gateway alone: 16 MiB at 256 KiB each, which outlasts a landing at any rate a gateway has."""
MUCH_BYTES: Final = UPLINK_BATCH_BYTES // 2
"""A gateway with more pending bytes has a backlog. Live readings of half a second are less."""
SMALL_BATCHES: Final = 4_000
"""Batches shared by all gateways without a backlog that have data pending: about half of what a hub takes in the second
between two landings, at some 0.1 ms each. The idle gateways share as many again, because credit is not taken back and
thousands may begin at once."""
SMALL_BATCHES_MIN: Final = 2
"""Minimum for each of them: the first batch of a backlog may leave, and a live reading does not wait until it has
landed."""


class CreditedConnection(Protocol):
    """Connection of a gateway that gets credit (`bridge.intake.Intake`)."""

    @property
    def waiting_bytes(self) -> int: ...

    @property
    def has_backlog(self) -> bool:
        """Messages of a backlog are pending."""
        ...

    def share(self, batches: int) -> None:
        """Set the number of batches that it may have in flight."""
        ...


class Shares:
    """Shares credit among all connections. On the loop's thread."""

    def __init__(self) -> None:
        self._drawing = 0
        """Connections with a backlog at the last count, plus those opened since."""
        self._new: dict[CreditedConnection, None] = {}
        """Connections opened since the last landing: it is not known yet whether they have a backlog."""
        self._newer: dict[CreditedConnection, None] = {}

    def add(self, connection: CreditedConnection, free_bytes: int) -> None:
        """Add a connection. `free_bytes`: what may still wait for the landing."""
        self._newer[connection] = None
        self._drawing += 1
        connection.share(self._of_drawing(free_bytes))

    def remove(self, connection: CreditedConnection) -> None:
        """Remove a connection."""
        self._new.pop(connection, None)
        self._newer.pop(connection, None)

    def landed(self, connections: Iterable[CreditedConnection], free_bytes: int) -> None:
        """Divide credit again among all connections, after a landing."""
        self._new, self._newer = self._newer, {}
        drawing, sending, silent = list[CreditedConnection](), list[CreditedConnection](), list[CreditedConnection]()
        for one in connections:
            (drawing if self._draws(one) else sending if one.waiting_bytes else silent).append(one)
        self._drawing = len(drawing)
        every = len(drawing) + len(sending) + len(silent)
        shares = self._of_drawing(free_bytes), _of_small(len(sending)), _of_small(every)
        for batches, those in zip(shares, (drawing, sending, silent), strict=True):
            for one in those:
                one.share(batches)

    def _draws(self, one: CreditedConnection) -> bool:
        """Return whether a connection has, or may have, a backlog."""
        return one.waiting_bytes > MUCH_BYTES or one.has_backlog or one in self._new

    def _of_drawing(self, free_bytes: int) -> int:
        return _within(max(0, free_bytes) // UPLINK_BATCH_BYTES // max(1, self._drawing), BATCHES_MIN)


def _of_small(gateways: int) -> int:
    return _within(SMALL_BATCHES // max(1, gateways), SMALL_BATCHES_MIN)


def _within(batches: int, batches_min: int) -> int:
    return min(max(batches, batches_min), BATCHES_MAX)
