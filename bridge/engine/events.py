"""Events of the AMQP machine for its owner. Nothing here calls the engine."""

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
    """Identity from SASL; None where there was no SASL."""


class Attached(msgspec.Struct, frozen=True, gc=False):
    """The peer attached its own link (answer with `Engine.accept` or `Engine.refuse`), or answered our attach.

    A peer that refuses our link causes no Attached, only Detached with the peer's condition.
    """

    link: Link


class LinkFlow(msgspec.Struct, frozen=True, gc=False):
    """The peer changed the credit of a link: it granted, requested a drain, or returned credit (`drained`)."""

    link: Link
    credit: int
    drain: bool


class Transfers(msgspec.Struct, frozen=True, gc=False):
    """Complete messages that arrived on one link in one read, in order.

    `deliveries` are numbers to settle with `Engine.settle`, one per message; empty when `settled`. `transaction` is the
    txn-id of messages that are part of a transaction (part 4, section 4.4.1); empty where the peer sent none.
    """

    link: Link
    deliveries: Sequence[int]
    messages: list[bytes]
    settled: bool
    transaction: bytes | None = None

    def __repr__(self) -> str:
        """Return counts and sizes, without bodies."""
        size = sum(map(len, self.messages))
        return f"<{len(self.messages)} transfers on {self.link!r}, {size} bytes, settled: {self.settled}>"


class Dispositions(msgspec.Struct, frozen=True, gc=False):
    """Dispositions of our messages by the peer: (tag, state, settled by the peer, detail).

    A delivery that the peer settled is over; otherwise `Engine.settle_sent` ends it.
    """

    link: Link
    items: list[tuple[int, DeliveryState, bool, Detail]]


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The peer has accepted and settled our messages with these tags; only for links with `Link.accepted_by_tag`."""

    link: Link
    tags: list[int]


class Detached(msgspec.Struct, frozen=True, gc=False):
    """The peer ended the link (the machine answers). Not reported for links that we detached."""

    link: Link
    closed: bool
    condition: Condition | None


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """The peer ended a session; its links were reported as Detached (not closed) before."""

    condition: Condition | None


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The connection is over; always the last event, exactly once. Its links end with it, without Detached."""

    condition: Condition | None


Event = PeerOpened | Attached | LinkFlow | Transfers | Accepted | Dispositions | Detached | SessionEnded | Closed
