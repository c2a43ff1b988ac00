"""Current state of the fleet in memory, for the API, the console and the metrics.

The service writes it on the loop's thread, where it is read too. It decides nothing: durable state is in the registry,
and the lake is authoritative for messages. It has the gateways that are connected to this hub, and those that were
lately; all others are in the registry only. Rates and totals are those of this hub.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from cloud.hub.groups import Content, GatewaySession, GroupReport, Key, LandingGroup, LandingOutcome, LedgerDocument
from cloud.hub.limits import HISTORY_SECONDS, LATENCIES_KEPT, LEFT_GATEWAYS_MAX, LEFT_KEPT_S
from cloud.hub.observed import ObservedState, decode_observed
from cloud.hub.registry.directory import GatewayRecord
from cloud.hub.takeovers import Takeovers
from cloud.lake.lake import TableRefusal
from cloud.lake.rows import ReceivedBatch


class Rate:
    """Messages in each of the last `HISTORY_SECONDS` seconds. `now_s`: monotonic seconds."""

    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * HISTORY_SECONDS))
        self._second = 0

    def add(self, messages: int, now_s: float) -> None:
        self._advance(int(now_s))
        self._counts[self._second % HISTORY_SECONDS] += messages

    def history(self, now_s: float) -> list[int]:
        """Return the counts, oldest first; the last entry is the last whole second."""
        self._advance(int(now_s))
        start = (self._second + 1) % HISTORY_SECONDS
        counts = self._counts.tolist()
        return (counts[start:] + counts[:start])[:-1]

    def _advance(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - HISTORY_SECONDS + 1), second + 1):
            self._counts[passed % HISTORY_SECONDS] = 0
        self._second = max(self._second, second)


@dataclass(slots=True)
class GatewayState:
    """State of a gateway for the console. Times are UTC microseconds, 0 for never."""

    tenant: str
    name: str
    first_seen: int
    last_seen: int
    connected: bool = False
    """Connected to any hub of the registry."""
    hub: str = ""
    """Writer id of the hub with its last connection; empty before the first one."""
    connected_at: int = 0
    """Begin of its last connection."""
    remote: str = ""
    landed: int = 0
    dropped: int = 0
    """Ledger ranges landed since the hub started: messages that the gateway discarded."""
    newest_received_at: int = 0
    """Latest `received_at` in the lake: freshness of the lake for this gateway."""
    status: Mapping[str, Any] | None = None
    rate: Rate | None = None
    session: GatewaySession | None = None
    connects: int = 0
    """Connects since the last log line about it."""
    line_at_s: float = -1e9
    is_stored: bool = False
    """Its state in the registry is restored here, so new observations may replace it there."""

    def observation(self) -> str:
        """Return the observations for the registry, JSON."""
        status = dict(self.status) if self.status is not None else None
        return msgspec.json.encode(ObservedState(status, self.newest_received_at, self.dropped)).decode()

    def read_observed(self, text: str | None) -> None:
        """Take over observations from the registry."""
        found = decode_observed(text) if text is not None else None
        if found is None:
            return
        self.status = found.status
        self.newest_received_at = max(self.newest_received_at, found.newest_received_at)
        self.dropped = found.dropped


@dataclass(slots=True)
class HubTotals:
    """Totals since the hub started."""

    rows: int = 0
    landings: int = 0
    duplicates: int = 0
    gaps: int = 0
    holes_closed: int = 0
    released: int = 0
    rejected: int = 0
    ledger_ranges: int = 0
    states: int = 0
    quarantined: int = 0


@dataclass(slots=True)
class TenantFigures:
    """Figures of one tenant's fleet."""

    connected: int = 0
    """Gateways connected to this hub."""
    rows: int = 0
    """Messages landed since the hub started."""
    bytes: int = 0
    """Their bytes, without compression."""
    rate: Rate = field(default_factory=Rate)


_NOTHING: Mapping[str, int] = {}


class FleetCount(NamedTuple):
    """Numbers of gateways in the registry, as they were counted last."""

    known: Mapping[str, int] = _NOTHING
    """Known gateways, by tenant."""
    elsewhere: Mapping[str, int] = _NOTHING
    """Gateways connected to other hubs, by tenant."""
    hubs: Mapping[str, int] = _NOTHING
    """Gateways connected to other hubs, by writer id of the hub."""


_NOT_COUNTED = FleetCount()


@dataclass(slots=True)
class FleetState:
    """Gateways and totals of a hub."""

    gateways: dict[Key, GatewayState] = field(default_factory=dict)
    totals: HubTotals = field(default_factory=HubTotals)
    rate: Rate = field(default_factory=Rate)
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    versions: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, TableRefusal] = field(default_factory=dict)
    """Tables of the lake that accept no rows now."""
    counted: FleetCount = _NOT_COUNTED
    """Gateways of all hubs (`cloud.hub.gateway_counter`)."""
    connected_here: int = 0
    """Gateways connected to this hub."""
    hub: str = ""
    """Writer id of this hub."""
    hub_names: Mapping[str, str] = field(default_factory=dict)
    """Names of the hubs of the registry, by writer id."""
    tenants: dict[str, TenantFigures] = field(default_factory=dict)
    _left: dict[Key, int] = field(default_factory=dict)
    """Gateways that are not connected any more, with the time since then, UTC microseconds; the oldest first."""
    takeovers: Takeovers = field(default_factory=lambda: Takeovers(time.monotonic))

    def current(self, record: GatewayRecord) -> GatewayState:
        """Return a copy of the state of a gateway with this record: as it is here if its last connection was to this
        hub."""
        stored = GatewayState(
            record.tenant,
            record.name,
            record.first_seen,
            record.last_seen,
            connected=record.connected,
            hub=record.writer or "",
            connected_at=record.connected_at or 0,
            remote=record.remote,
            landed=record.landed,
        )
        stored.read_observed(record.observed)
        here = self.gateways.get((record.tenant, record.name))
        if here is None or (here.session is None and record.writer not in (None, self.hub)):
            return stored
        return replace(
            here,
            first_seen=min(here.first_seen, record.first_seen),
            landed=max(here.landed, record.landed),
            newest_received_at=max(here.newest_received_at, stored.newest_received_at),
            status=here.status if here.status is not None else stored.status,
        )

    def tenant(self, name: str) -> TenantFigures:
        """Return the figures of a tenant; empty ones for an unknown tenant."""
        return self.tenants.get(name) or TenantFigures()

    def count_known(self, tenant: str | None = None) -> int:
        """Return the number of known gateways of a tenant, or of all."""
        return max(_of(self.counted.known, tenant), self._here(tenant))

    def count_connected(self, tenant: str | None = None) -> int:
        """Return the number of gateways of a tenant, or of all, that are connected to any hub."""
        # One that has just come from another hub is still counted there.
        return min(self._here(tenant) + _of(self.counted.elsewhere, tenant), self.count_known(tenant))

    def share_of(self, tenant: str) -> float:
        """Return the share of this hub in what a tenant may send to all hubs: that of its connected gateways that are
        connected here, and at least one. Those at other hubs are counted (`COUNTED_EVERY_S`)."""
        here = max(self._here(tenant), 1)
        return here / (here + _of(self.counted.elsewhere, tenant))

    def _here(self, tenant: str | None) -> int:
        return self.connected_here if tenant is None else self.tenant(tenant).connected

    def restore(self, key: Key, landed: int, observed: str | None) -> GatewayState | None:
        """Take over what the registry has of a gateway that has connected. Return the gateway if it has reported a
        status since, None otherwise."""
        gateway = self.gateways.get(key)
        if gateway is None:
            return None
        reported, dropped = gateway.status, gateway.dropped
        gateway.landed, gateway.is_stored = max(gateway.landed, landed), True
        gateway.read_observed(observed)
        gateway.dropped = dropped
        if reported is None:
            return None
        gateway.status = reported
        return gateway

    def connect(self, session: GatewaySession, now_us: int) -> GatewaySession | None:
        """Record a new connection; return the one it replaces, if any."""
        self.drop_left(now_us)
        gateway = self.gateways.get(session.key)
        if gateway is None:
            gateway = self.gateways[session.key] = GatewayState(*session.key, now_us, now_us)
        self._left.pop(session.key, None)
        before, gateway.session = gateway.session, session
        if before is None:
            self._count_here(session.tenant, 1)
        gateway.status, gateway.is_stored = None, False  # another hub may know more, also if the one before hangs
        gateway.connected, gateway.hub, gateway.connected_at = True, self.hub, now_us
        gateway.remote, gateway.last_seen = session.remote, now_us
        return before

    def disconnect(self, session: GatewaySession, now_us: int) -> bool:
        """Record the end of a connection; return False when the gateway has a later one."""
        gateway = self.gateways.get(session.key)
        if gateway is None or gateway.session is not session:
            return False
        self._count_here(session.tenant, -1)
        gateway.session, gateway.connected, gateway.last_seen = None, False, now_us
        if session.refused:
            del self.gateways[session.key]
        else:
            self._left[session.key] = now_us
        self.drop_left(now_us)
        return True

    def _count_here(self, tenant: str, step: int) -> None:
        self.connected_here += step
        self.tenants.setdefault(tenant, TenantFigures()).connected += step

    def drop_left(self, now_us: int) -> None:
        """Drop the gateways that left more than `LEFT_KEPT_S` ago, and the oldest ones above `LEFT_GATEWAYS_MAX`."""
        before_us = now_us - int(LEFT_KEPT_S * 1e6)
        while self._left:
            key = next(iter(self._left))
            if self._left[key] > before_us and len(self._left) <= LEFT_GATEWAYS_MAX:
                return
            del self._left[key], self.gateways[key]

    def forget(self, key: Key, at_us: int) -> None:
        """Remove a gateway that was forgotten at that time, unless it has connected since."""
        gateway = self.gateways.get(key)
        if gateway is not None and gateway.session is None and gateway.last_seen < at_us:
            del self._left[key], self.gateways[key]

    def refuse(self, key: Key) -> GatewaySession | None:
        """Count a gateway as not known, because its tenant has no room for it; return the connection to close."""
        gateway = self.gateways.get(key)
        if gateway is None:
            return None
        if gateway.session is None:
            del self._left[key], self.gateways[key]
            return None
        gateway.session.refused = True
        return gateway.session

    def count_connect(self, key: Key, now_s: float, every_s: float) -> int:
        """Count a connect. Return the number of connects to log now; 0 while the last line is too recent."""
        gateway = self.gateways[key]
        gateway.connects += 1
        if now_s - gateway.line_at_s < every_s:
            return 0
        times, gateway.connects, gateway.line_at_s = gateway.connects, 0, now_s
        return times

    def record_seen(self, key: Key, now_us: int) -> None:
        """Record the time a gateway was last seen."""
        gateway = self.gateways.get(key)
        if gateway is not None:
            gateway.last_seen = now_us

    def landed(self, group: LandingGroup, report: GroupReport, now_s: float) -> None:
        """Count the results of a landed group."""
        totals, landed = self.totals, report.landed
        self.versions, self.refusals = report.versions, report.refusals
        totals.ledger_ranges += report.ledger_ranges
        totals.states += report.states
        totals.quarantined += report.quarantined
        landed_now = [(e.session, e.content) for e in group.entries if e.verdict is LandingOutcome.LANDED]
        if report.ledger_ranges:
            self._count_dropped(landed_now)
        batches = [(who, what) for who, what in landed_now if isinstance(what, ReceivedBatch)]
        if not batches and not landed.rows:
            return
        totals.landings += landed.rows > 0
        totals.rows += landed.rows
        totals.duplicates += landed.duplicates
        totals.gaps += landed.gaps
        totals.holes_closed += landed.holes_closed
        if landed.rows:
            self.latencies_s.append(report.seconds)
        self.rate.add(landed.rows, now_s)
        sizes: Counter[Key] = Counter()
        counts: Counter[Key] = Counter()
        for session, received in batches:
            sizes[session.key] += received.batch.expanded
            counts[session.key] += len(received.batch)
            gateway = self.gateways.get(session.key)
            if gateway is not None:
                newest = max(received.batch.received_at) // 1_000
                gateway.newest_received_at = max(gateway.newest_received_at, newest)
        for key, rows in landed.by_gateway.items():
            gateway = self.gateways.get(key)
            if gateway is not None:
                gateway.landed += rows
                gateway.rate = gateway.rate or Rate()
                gateway.rate.add(rows, now_s)
            figures = self.tenants.setdefault(key[0], TenantFigures())
            figures.rows += rows
            figures.bytes += sizes[key] * rows // max(counts[key], rows)  # messages that had landed count once
            figures.rate.add(rows, now_s)

    def _count_dropped(self, landed: Sequence[tuple[GatewaySession, Content]]) -> None:
        for session, content in landed:
            gateway = self.gateways.get(session.key)
            if isinstance(content, LedgerDocument) and gateway is not None:
                gateway.dropped += len(content.ranges)

    def latency_s(self, share: float) -> float | None:
        """Return the latency that a share of the last landings did not exceed; None before the first."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _of(counts: Mapping[str, int], tenant: str | None) -> int:
    return counts.get(tenant, 0) if tenant is not None else sum(counts.values())
