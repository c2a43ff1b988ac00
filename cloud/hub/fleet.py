"""Current state of the fleet in memory, for the API, the console and the metrics.

The service writes it on the loop's thread, where it is read too. It decides nothing: durable state is in the registry,
and the lake is authoritative for messages. Gateways at other hubs are as the registry has them
(`cloud.hub.replicas`); rates and totals are those of this hub.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cloud.hub.groups import Content, GatewaySession, GroupReport, Key, LandingGroup, LandingOutcome, LedgerDocument
from cloud.hub.limits import GATEWAYS_MAX, HISTORY_SECONDS, LATENCIES_KEPT
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
    observed: str | None = None
    """Observations last read from the registry, JSON."""

    def observation(self) -> str:
        """Return the observations for the registry, JSON."""
        status = dict(self.status) if self.status is not None else None
        return msgspec.json.encode(ObservedState(status, self.newest_received_at, self.dropped)).decode()

    def read_observed(self, text: str | None, found: ObservedState | None = None) -> None:
        """Take over observations of another hub from the registry, unless they are the ones read before. `found`: what
        they are, if a thread has decoded them."""
        if text is None or text == self.observed:
            return
        self.observed = text
        found = found or decode_observed(text)
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

    known: int = 0
    """Gateways known."""
    connected: int = 0
    rows: int = 0
    """Messages landed since the hub started."""
    bytes: int = 0
    """Their bytes, without compression."""
    rate: Rate = field(default_factory=Rate)


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
    connected: int = 0
    """Gateways connected to any hub."""
    connected_here: int = 0
    """Gateways connected to this hub."""
    hub: str = ""
    """Writer id of this hub."""
    left_out: bool = False
    """Some known gateways are not in memory: there are more than `GATEWAYS_MAX`."""
    hub_names: Mapping[str, str] = field(default_factory=dict)
    """Names of the hubs of the registry, by writer id."""
    tenants: dict[str, TenantFigures] = field(default_factory=dict)
    _landed_of_forgotten: dict[Key, int] = field(default_factory=dict)
    """Messages in the lake of forgotten gateways; they count again when a gateway returns."""
    _moved: dict[Key, GatewayRecord] = field(default_factory=dict)
    """Gateways that are connected to another hub by the registry, while an older connection to this one has not
    ended."""
    _elsewhere: set[Key] = field(default_factory=set)
    """Gateways that were connected to another hub at the last look."""
    unsettled: set[Key] = field(default_factory=set)
    """Gateways that changed here, or had no place, since they were taken over: their records count again."""
    takeovers: Takeovers = field(default_factory=lambda: Takeovers(time.monotonic))

    def current(self, record: GatewayRecord) -> GatewayState:
        """Return the state of a gateway with this record: as it is here if its last connection was to this hub."""
        here = self.gateways.get((record.tenant, record.name))
        last_here = here is not None and here.hub == self.hub and record.writer in (None, self.hub)
        if here is not None and (here.session is not None or last_here):
            here.landed = max(here.landed, record.landed)
            here.first_seen = min(here.first_seen, record.first_seen)
            return here
        gateway = GatewayState(
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
        gateway.read_observed(record.observed)
        return gateway

    def tenant(self, name: str) -> TenantFigures:
        """Return the figures of a tenant; empty ones for an unknown tenant."""
        return self.tenants.get(name) or TenantFigures()

    def load(self, records: Sequence[GatewayRecord], forgotten: Mapping[Key, int] | None = None) -> None:
        """Load the `GATEWAYS_MAX` gateways of the registry seen last. `forgotten`: messages in the lake of forgotten
        gateways."""
        self._landed_of_forgotten = dict(forgotten or {})
        self.left_out = len(records) > GATEWAYS_MAX
        newest = sorted(records, key=lambda record: record.last_seen, reverse=True)[:GATEWAYS_MAX]
        for record in newest:
            gateway = self._add(record)
            gateway.hub, gateway.connected_at = record.writer or "", record.connected_at or 0
            gateway.read_observed(record.observed)
            gateway.dropped = 0

    def _add(self, record: GatewayRecord) -> GatewayState:
        gateway = GatewayState(
            record.tenant, record.name, record.first_seen, record.last_seen, landed=record.landed, remote=record.remote
        )
        self.gateways[record.tenant, record.name] = gateway
        self.tenants.setdefault(record.tenant, TenantFigures()).known += 1
        return gateway

    def follow(self, found: Iterable[tuple[GatewayRecord, ObservedState | None]], there: Collection[str]) -> None:
        """Take over gateways at other hubs from the registry, with their decoded observations. `there`: writer ids of
        the hubs that are there. A gateway that is connected here stays as it is until its connection ends."""
        for record, observed in found:
            key = record.tenant, record.name
            gateway = self.gateways.get(key)
            if gateway is None:
                if len(self.gateways) >= GATEWAYS_MAX:
                    self.unsettled.add(key)
                    self.left_out = True
                    continue
                gateway = self._add(record)
            self._moved.pop(key, None)
            self._elsewhere.discard(key)
            connected = record.connected and record.writer in there
            if connected:
                self._elsewhere.add(key)
            if gateway.session is None:
                self._take_over(gateway, record, observed, connected=connected)
            elif connected:
                self._moved[key] = record

    def come_back(self, keys: Iterable[Key]) -> None:
        """Count gateways as connected to no other hub: they have come here, or were forgotten."""
        for key in keys:
            self._moved.pop(key, None)
            self.unsettled.discard(key)
            gateway = self.gateways.get(key)
            if key in self._elsewhere and gateway is not None and gateway.session is None:
                self._set_connected(gateway, connected=False)
            self._elsewhere.discard(key)

    def _take_over(
        self, gateway: GatewayState, record: GatewayRecord, observed: ObservedState | None = None, *, connected: bool
    ) -> None:
        self._set_connected(gateway, connected=connected)
        gateway.hub, gateway.connected_at = record.writer or "", record.connected_at or 0
        gateway.remote, gateway.last_seen = record.remote, max(gateway.last_seen, record.last_seen)
        gateway.landed = max(gateway.landed, record.landed)
        gateway.read_observed(record.observed, observed)

    def _set_connected(self, gateway: GatewayState, *, connected: bool) -> None:
        step = int(connected) - int(gateway.connected)
        self.connected += step
        self.tenants[gateway.tenant].connected += step
        gateway.connected = connected

    def connect(self, session: GatewaySession, now_us: int) -> GatewaySession | None:
        """Record a new connection; return the one it replaces, if any."""
        gateway = self.gateways.get(session.key)
        if gateway is None:
            landed = self._landed_of_forgotten.pop(session.key, 0)
            gateway = self.gateways[session.key] = GatewayState(*session.key, now_us, now_us, landed=landed)
            self.tenants.setdefault(session.tenant, TenantFigures()).known += 1
        before, gateway.session = gateway.session, session
        self._moved.pop(session.key, None)
        self.connected_here += before is None
        self._set_connected(gateway, connected=True)
        gateway.hub, gateway.connected_at = self.hub, now_us
        gateway.remote, gateway.last_seen = session.remote, now_us
        return before

    def disconnect(self, session: GatewaySession, now_us: int) -> bool:
        """Record the end of a connection; return False when the gateway has a later one."""
        gateway = self.gateways.get(session.key)
        if gateway is None or gateway.session is not session:
            return False
        self.connected_here -= 1
        self._set_connected(gateway, connected=False)
        gateway.session, gateway.last_seen = None, now_us
        self.unsettled.add(session.key)
        if (record := self._moved.pop(session.key, None)) is not None:
            self._take_over(gateway, record, connected=True)
        elif session.refused or len(self.gateways) > GATEWAYS_MAX:
            self._remove(gateway)
            self.left_out = self.left_out or not session.refused
        return True

    def forget(self, key: Key, at_us: int) -> None:
        """Remove a gateway that was forgotten at that time, unless it has connected since."""
        gateway = self.gateways.get(key)
        if gateway is None or gateway.session is not None or gateway.last_seen >= at_us:
            return
        self._set_connected(gateway, connected=False)
        self.unsettled.add(key)
        if gateway.landed and len(self._landed_of_forgotten) < GATEWAYS_MAX:
            self._landed_of_forgotten[key] = gateway.landed
        self._remove(gateway)

    def refuse(self, key: Key) -> GatewaySession | None:
        """Count a gateway as not known, because its tenant has no room for it; return the connection to close."""
        gateway = self.gateways.get(key)
        if gateway is None:
            return None
        if gateway.session is None:
            self._remove(gateway)
            return None
        gateway.session.refused = True
        return gateway.session

    def _remove(self, gateway: GatewayState) -> None:
        del self.gateways[gateway.tenant, gateway.name]
        self.tenants[gateway.tenant].known -= 1

    def count_connect(self, key: Key, now_s: float, every_s: float) -> int:
        """Count a connect. Return the number of connects to log now; 0 while the last line is too recent."""
        gateway = self.gateways[key]
        gateway.connects += 1
        if now_s - gateway.line_at_s < every_s:
            return 0
        times, gateway.connects, gateway.line_at_s = gateway.connects, 0, now_s
        return times

    def may_know(self, key: Key) -> bool:
        """Return whether a gateway is known, or may be: only the registry knows all."""
        return self.left_out or key in self.gateways

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
                figures = self.tenants[gateway.tenant]
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
