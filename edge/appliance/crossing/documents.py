"""What a gateway says of its bridge, and a command reads: JSON at ``/api/v1/bridge``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

PROBE_S: Final = 20.0
"""How long an answer may take: a hub gathers for half a second and lands, a slow disk for some seconds more."""


AUTONOMY_SHOWN_HOURS_MAX: Final = 10 * 365 * 24
"""Hours of room that are shown as a number. A larger figure only means that nothing is being stored now."""


def autonomy(hours: float) -> str:
    """Return for how long there is room, for people."""
    if hours > AUTONOMY_SHOWN_HOURS_MAX:
        return "more than 10 years"
    return f"{hours:,.1f} hours" if hours < 1000 else f"{hours / 24:,.0f} days"


class ProbeResult(msgspec.Struct, frozen=True):
    """What came of it."""

    connector: str
    ok: bool
    round_trip_s: float | None
    """Until the hub had landed it; None: the peer is none, or did not answer."""
    why: str


class ForwarderStatus(msgspec.Struct, frozen=True):
    """One forwarder."""

    name: str
    direction: str
    filter: str
    remote_address: str
    backlog_messages: int
    """At most: messages of other addresses in the same logs may count while it is behind."""
    fault: str | None = None
    """Why it takes nothing from its address; None: it does."""
    rejected: int = 0
    """Messages that arrived since the start and cannot be taken here (too large, no place for them)."""


class ConnectorStatus(msgspec.Struct, frozen=True):
    """One connector. Times are seconds since 1970."""

    name: str
    type: str
    state: str
    """``connected``, ``connecting`` or ``paused``."""
    since: float
    endpoint: str | None
    peer: str | None
    attempts: int
    """Since it was last connected."""
    last_error: str | None
    backlog_messages: int
    backlog_bytes: int
    """Bodies, about: what its logs keep, in proportion."""
    backlog_oldest_at: float | None
    """When the oldest message that waits was received; None: none does, or it is not known."""
    accepted: int
    accepted_per_s: float
    """Over the last minute."""
    drain_s: float | None
    """Seconds until the backlog is gone as it shrinks now; None: it does not."""
    manifest_hour: float | None
    """The hour whose messages are stated when it is over; None: the peer takes no manifests."""
    manifest_waiting: int
    """Statements the peer has not got."""
    manifest_due: bool
    """It is to be stated what was accepted until now."""
    forwarders: Sequence[ForwarderStatus]
    live_messages: int = 0
    """Of the backlog: what came since the link came up; the rest was there."""
    budget_bytes: int | None = None
    """Of a month, both ways; None: there is none."""
    spent_bytes: int = 0
    """Of it, this month (UTC)."""
    quiet: bool = False
    """It is in its quiet hours: what was there waits."""


class BridgeStatus(msgspec.Struct, frozen=True):
    """The whole bridge."""

    gateway: str
    epoch: str
    public_key: str | None
    """What manifests are signed with; None before there is one."""
    room_bytes: int | None
    """Bodies there is room for before messages are refused or given up; None: not known."""
    stored_bytes_per_s: float
    """Bodies taken into the store, over the last minute."""
    autonomy_hours: float | None
    """Until there is no room, were nothing sent; None: nothing comes, or the room is not known."""
    connectors: Sequence[ConnectorStatus]
    left: dict[str, int] = {}
    """Messages that wait for forwarders that are configured no more, at most, by ``CONNECTOR/NAME``. What comes is kept
    for them too, until they come back or are purged."""
