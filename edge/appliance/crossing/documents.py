"""Status of a gateway's bridge: JSON at ``/api/v1/bridge``, read by `waypost bridge`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

PROBE_S: Final = 20.0
"""Time limit for an answer: a hub gathers for half a second, then lands, which takes seconds on a slow disk."""


AUTONOMY_SHOWN_HOURS_MAX: Final = 10 * 365 * 24
"""Hours of room that are shown as a number. A larger figure only means that nothing is being stored now."""


def autonomy(hours: float) -> str:
    """Return the hours until the store is full, for people."""
    if hours > AUTONOMY_SHOWN_HOURS_MAX:
        return "more than 10 years"
    return f"{hours:,.1f} hours" if hours < 1000 else f"{hours / 24:,.0f} days"


class ProbeResult(msgspec.Struct, frozen=True):
    """Result of a probe."""

    connector: str
    ok: bool
    round_trip_s: float | None
    """Time until the hub had landed it; None: the peer is not a hub, or did not answer."""
    why: str


class ForwarderStatus(msgspec.Struct, frozen=True):
    """Status of one forwarder."""

    name: str
    direction: str
    filter: str
    remote_address: str
    backlog_messages: int
    """Upper bound: while it is behind, messages of other addresses in the same logs may count."""
    fault: str | None = None
    """Reason why it receives nothing from its address, or None."""
    rejected: int = 0
    """Messages from the peer rejected since the start (too large, or their address is full)."""


class RouterLinkStatus(msgspec.Struct, frozen=True):
    """Link of a connector to a router of the network. Messages are counted since the connector was configured."""

    neighbour: str
    """Name of the router; empty while there is no link."""
    cost: int
    """Cost of the link; 0 while there is none."""
    links: int
    """AMQP links with messages to it."""
    sent: int
    received: int
    unanswered: int
    outcomes: dict[str, int]
    """Answers to messages: accepted, rejected, released, modified; path_lost counts those that get none."""


class ConnectorStatus(msgspec.Struct, frozen=True):
    """Status of one connector. Times are seconds since 1970."""

    name: str
    type: str
    state: str
    """``connected``, ``connecting`` or ``paused``."""
    since: float
    endpoint: str | None
    peer: str | None
    attempts: int
    """Attempts since it was last connected."""
    last_error: str | None
    backlog_messages: int
    backlog_bytes: int
    """Approximate size of the bodies, estimated from the size of its logs."""
    backlog_oldest_at: float | None
    """Time at which the oldest waiting message was received; None: none waits, or not known."""
    accepted: int
    accepted_per_s: float
    """Rate of the last minute."""
    drain_s: float | None
    """Seconds until the backlog is empty at the current rate; None: it does not shrink."""
    manifest_hour: float | None
    """Hour that is being counted for the next manifest; None: the peer takes no manifests."""
    manifest_waiting: int
    """Statements that the peer has not accepted."""
    manifest_due: bool
    """True while a manifest of the messages accepted until now is requested."""
    forwarders: Sequence[ForwarderStatus]
    live_messages: int = 0
    """Messages of the backlog that arrived since the link came up."""
    budget_bytes: int | None = None
    """Data budget of a month, both directions; None: unlimited."""
    spent_bytes: int = 0
    """Bytes of the budget used this month (UTC)."""
    quiet: bool = False
    """True in its quiet hours: the backlog waits."""
    router: RouterLinkStatus | None = None
    """Link of a connector of type ``router``, which stores nothing; None: another type."""


class BridgeStatus(msgspec.Struct, frozen=True):
    """Status of the bridge."""

    gateway: str
    epoch: str
    public_key: str | None
    """Public key of the manifests' signatures; None before the key is made."""
    room_bytes: int | None
    """Bytes of bodies that can be stored before messages are refused or dropped; None: not known."""
    stored_bytes_per_s: float
    """Bytes of bodies stored a second, over the last minute."""
    autonomy_hours: float | None
    """Hours until the store is full if nothing is sent; None: nothing is stored, or the free space is not known."""
    connectors: Sequence[ConnectorStatus]
    left: dict[str, int] = {}
    """Upper bounds of the messages that wait for forwarders that are no longer configured, by ``CONNECTOR/NAME``. New
    messages are kept for them too, until they are configured again or purged."""
