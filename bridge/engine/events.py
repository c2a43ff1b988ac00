"""What the AMQP machine tells its owner. No call of the engine is made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bridge.engine.link import Link
from bridge.engine.states import Condition, DeliveryState, Detail
from bridge.hidden import hides


@hides("properties")
class PeerOpened(msgspec.Struct, frozen=True, gc=False):
    """The peer's open. A server answers with `Engine.open` (or `Engine.close`)."""

    container_id: str
    hostname: str | None
    desired_capabilities: tuple[str, ...]
    offered_capabilities: tuple[str, ...]
    properties: Mapping[Any, Any]
    identity: str | None
    """What SASL established; None where there was no SASL."""


class Attached(msgspec.Struct, frozen=True, gc=False):
    """The peer attached: a link of its own (answer with `Engine.accept` or `Engine.refuse`), or the answer to ours.

    A refusal of ours by the peer is no Attached; it is the Detached alone, with the peer's condition.
    """

    link: Link


class LinkFlow(msgspec.Struct, frozen=True, gc=False):
    """The credit of a link changed by the peer's doing: it granted, asked to drain, or gave back (`drained`)."""

    link: Link
    credit: int
    drain: bool


class Transfers(msgspec.Struct, frozen=True, gc=False):
    """Messages that arrived complete on one link in one read, in order.

    `deliveries` are numbers to be settled with `Engine.settle`, one a message; empty when `settled`.
    """

    link: Link
    deliveries: Sequence[int]
    messages: list[bytes]
    settled: bool

    def __repr__(self) -> str:
        """Counts and sizes, no bodies."""
        size = sum(map(len, self.messages))
        return f"<{len(self.messages)} transfers on {self.link!r}, {size} bytes, settled: {self.settled}>"


class Dispositions(msgspec.Struct, frozen=True, gc=False):
    """What the peer did with messages of ours: (tag, state, settled by the peer, detail).

    Where the peer settled, the delivery is over; where it did not, `Engine.settle_sent` ends it.
    """

    link: Link
    items: list[tuple[int, DeliveryState, bool, Detail]]


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The peer has accepted and settled messages of ours with these tags; of a link with `Link.accepted_apart`."""

    link: Link
    tags: list[int]


class Detached(msgspec.Struct, frozen=True, gc=False):
    """The link is over by the peer's doing (the machine answers). Not told for links we detached ourselves."""

    link: Link
    closed: bool
    condition: Condition | None


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """A session of the peer ended; its links were told as Detached (not closed) before."""

    condition: Condition | None


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The connection is over; always the last event, exactly once. Its links end with it, without Detached."""

    condition: Condition | None


Event = PeerOpened | Attached | LinkFlow | Transfers | Accepted | Dispositions | Detached | SessionEnded | Closed
