"""Batches that a consumer can take more cheaply than run by run.

Each is a collection of `Stored` runs, as every batch is. A consumer that does not know the class iterates over it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from bridge.message import QOS_MASK, Run, Stored
from edge.broker.model.interfaces import ManyOrigins, Origin

SETTLED = -1
"""Position of a delivery that needs no answer."""


class DeliveryBatch(Collection[Stored]):
    """Runs that are delivered together, in order."""

    __slots__ = ()

    def __contains__(self, stored: object) -> bool:
        return any(stored == each for each in self)


class LiveOffer(NamedTuple):
    """Consecutive runs for the same live subscriptions."""

    runs: Sequence[Run]
    origins: Sequence[Origin | None]
    """One for each run; None is never held back for a slow subscriber."""
    acknowledged_messages: int
    """Messages above QoS 0."""


def offer_of(run: Run, origin: Origin | None) -> LiveOffer:
    """Return the offer of a single run."""
    return LiveOffer((run,), (origin,), len(run.bodies) if run.flags & QOS_MASK else 0)


class LiveBatch(DeliveryBatch):
    """Runs for live subscribers, which are in no log."""

    __slots__ = ("_position", "acknowledged_messages", "runs")

    def __init__(self, position: int, runs: Sequence[Run], acknowledged_messages: int) -> None:
        """`position` is that of the first of the `acknowledged_messages`, which are above QoS 0. A run of QoS 2 is
        alone."""
        self._position = position
        self.runs = runs
        self.acknowledged_messages = acknowledged_messages

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Stored]:
        position = self._position
        for run in self.runs:
            if run.flags & QOS_MASK:
                yield Stored(position, 0, run)
                position += len(run.bodies)
            else:
                yield Stored(SETTLED, 0, run)


class EncodedBatch(DeliveryBatch):
    """AMQP messages of many senders, encoded for a link."""

    __slots__ = ("_origin", "_place", "messages", "position")

    def __init__(self, position: int, origin: ManyOrigins, place: int, stop: int) -> None:
        """The messages ``place <= i < stop`` of `origin`; `position` is that of the first of them."""
        self.position = position
        self.messages: Sequence[bytes] = origin.encoded[place:stop]
        self._origin = origin
        self._place = place

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Stored]:
        for i in range(len(self.messages)):
            yield Stored(self.position + i, 0, self._origin.run(self._place + i))
