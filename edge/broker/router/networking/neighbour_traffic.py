"""Counts of messages between neighbours of a router network."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.engine import DeliveryState

OUTCOMES: Final = ("accepted", "rejected", "released", "modified", "path_lost")
"""Fields of `NeighbourTraffic` with the answers of neighbours."""

_FIELDS: Final = {
    DeliveryState.ACCEPTED: "accepted",
    DeliveryState.REJECTED: "rejected",
    DeliveryState.MODIFIED: "modified",
    DeliveryState.MODIFIED_FAILED: "modified",
    DeliveryState.MODIFIED_UNDELIVERABLE: "modified",
}


def outcome_field(state: DeliveryState) -> str:
    """Return the field of `NeighbourTraffic` that counts an answer."""
    return _FIELDS.get(state, "released")


class NeighbourTraffic(msgspec.Struct):
    """Messages to and from a neighbour, and its answers."""

    sent: int = 0
    received: int = 0
    accepted: int = 0
    rejected: int = 0
    released: int = 0
    modified: int = 0
    """Returned with a change: the consumer has failed, or cannot process it."""
    path_lost: int = 0
    """Messages without an answer, because a link was lost: they may have been processed."""

    @property
    def unanswered(self) -> int:
        """Messages that the neighbour has not answered."""
        return self.sent - self.accepted - self.rejected - self.released - self.modified - self.path_lost

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of messages by outcome (`OUTCOMES`)."""
        return {name: getattr(self, name) for name in OUTCOMES}

    def add(self, other: NeighbourTraffic) -> None:
        """Add the counts of another neighbour."""
        for name in ("sent", "received", *OUTCOMES):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class NetworkCounts(msgspec.Struct):
    """Further counts of a router network at one router since the start, over all neighbours."""

    looped: int = 0
    """Messages that were released because they had passed this router, or too many routers."""
    dropped: int = 0
    """Multicast messages dropped because a neighbour was too slow."""
