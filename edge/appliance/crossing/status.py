"""Monitor the bridge of a running gateway: backlog, rates, and the hours until the store is full."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.message import Stored
from edge.appliance.crossing.documents import BridgeStatus, ConnectorStatus, ForwarderStatus, RouterLinkStatus
from edge.broker.configuration import ConnectorType, Forwarder
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.router.peer_connector import PeerConnector
from edge.broker.router.uplinks import AnyConnector, Uplinks, is_to_hub
from edge.broker.store.contract import Store

RATE_S: Final = 60
"""Window of a rate, with one sample a second."""

SLOW_INTERVAL_S: Final = 10.0
"""Interval at which the free space is queried, and the oldest waiting message is read, which takes a segment of the
store."""


class _RateSample(NamedTuple):
    at_s: float
    accepted: int
    backlog: int


class LinkRates:
    """Rates of the last minute, by name."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[_RateSample]] = {}

    def add(self, name: str, at_s: float, accepted: int, backlog: int) -> None:
        """Add a sample of a counter and a backlog."""
        samples = self._samples.setdefault(name, deque())
        samples.append(_RateSample(at_s, accepted, backlog))
        while samples[0].at_s < at_s - RATE_S:
            samples.popleft()

    def keep(self, names: set[str]) -> None:
        """Drop the samples of all other names."""
        self._samples = {name: samples for name, samples in self._samples.items() if name in names}

    def per_second(self, name: str) -> tuple[float, float]:
        """Return (increase of the counter, decrease of the backlog), each a second."""
        samples = self._samples.get(name)
        if not samples or samples[-1].at_s <= samples[0].at_s:
            return 0.0, 0.0
        first, last = samples[0], samples[-1]
        passed_s = last.at_s - first.at_s
        return (last.accepted - first.accepted) / passed_s, (first.backlog - last.backlog) / passed_s


if TYPE_CHECKING:
    from edge.appliance.console.status import NetworkStatus
    from edge.appliance.crossing.topology import TopologyStatus

_STORED: Final = "$stored"
"""Name of the rate of stored bytes; not a valid name of a connector."""


class BridgeWatch:
    """Sample the bridge once a second, to report its rates."""

    def __init__(
        self,
        uplinks: Uplinks,
        store: Store,
        *,
        stored_bytes: Callable[[], int],
        room_bytes: Callable[[], int | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stored_bytes`: bytes of bodies stored so far; `room_bytes`: bytes that can still be stored."""
        self._uplinks = uplinks
        self._store = store
        self._stored_bytes = stored_bytes
        self._room_bytes = room_bytes
        self._clock_s = clock_s
        self._rates = LinkRates()
        self._oldest: dict[str, float] = {}
        self._seldom_due_s = 0.0
        self._room: int | None = None

    @property
    def connectors(self) -> dict[str, AnyConnector]:
        """Current connectors by name."""
        return {uplink.connector.name: uplink for uplink in self._uplinks}

    def topology(self) -> TopologyStatus:
        """Return the state of the router network."""
        from edge.appliance.crossing.topology import topology_of  # noqa: PLC0415 - few gateways have one

        return topology_of(self._uplinks.network)

    def network(self) -> NetworkStatus | None:
        """Return the figures of the router network; None without one."""
        network = self._uplinks.network
        if network is None:
            return None
        from edge.appliance.crossing.topology import network_status  # noqa: PLC0415 - few gateways have one

        return network_status(network)

    def take_sample(self) -> None:
        """Take a sample; call it once a second."""
        now = self._clock_s()
        for uplink in self._uplinks:
            name = uplink.connector.name
            self._rates.add(name, now, uplink.figures.messages_accepted, uplink.backlog)
            if now >= self._seldom_due_s:
                self._read_oldest(uplink)
        if now >= self._seldom_due_s:
            self._seldom_due_s, self._room = now + SLOW_INTERVAL_S, self._room_bytes()
        self._rates.add(_STORED, now, self._stored_bytes(), 0)
        self._rates.keep({_STORED, *(uplink.connector.name for uplink in self._uplinks)})

    def status(self, gateway: str, public_key: str | None, forwarders: Sequence[Forwarder]) -> BridgeStatus:
        """Return the status of the bridge; `forwarders` are the configured ones."""
        taken, _ = self._rates.per_second(_STORED)
        hours = self.autonomy_hours
        connectors = [self._connector(uplink, forwarders) for uplink in self._uplinks]
        left = self._uplinks.left
        return BridgeStatus(gateway, self._store.lineage.epoch, public_key, self._room, taken, hours, connectors, left)

    @property
    def autonomy_hours(self) -> float | None:
        """Hours until the store is full at the rate of the last minute; None when that is not known."""
        taken, _ = self._rates.per_second(_STORED)
        return self._room / taken / 3600 if self._room is not None and taken > 0 else None

    def _connector(self, uplink: AnyConnector, forwarders: Sequence[Forwarder]) -> ConnectorStatus:
        connector, state = uplink.connector, uplink.dialer.state
        rate, shrinks = self._rates.per_second(connector.name)
        backlog = uplink.backlog
        progress = uplink.progress() if is_to_hub(uplink) else None
        manifests = uplink.manifests if is_to_hub(uplink) else None
        hour = manifests.stated_until if manifests is not None else None
        return ConnectorStatus(
            name=connector.name,
            type=connector.type.value,
            state="paused" if state.paused else "connected" if state.connected else "connecting",
            since=state.since,
            endpoint=state.endpoint,
            peer=state.peer,
            attempts=state.attempts,
            last_error=state.last_error,
            backlog_messages=backlog,
            backlog_bytes=sum(map(self._bytes, uplink.parts)),
            backlog_oldest_at=self._oldest.get(connector.name) if backlog else None,
            accepted=uplink.figures.messages_accepted,
            accepted_per_s=rate,
            drain_s=0.0 if not backlog else backlog / shrinks if shrinks > 0 else None,
            manifest_hour=None if hour is None else hour / 1e9,
            manifest_waiting=manifests.waiting if manifests is not None else 0,
            manifest_due=manifests is not None and manifests.close_requested,
            forwarders=list(_forwarders(uplink, forwarders)),
            live_messages=progress.live_messages if progress is not None else 0,
            budget_bytes=progress.budget_bytes if progress is not None else None,
            spent_bytes=progress.spent_bytes if progress is not None else 0,
            quiet=progress is not None and progress.quiet,
            router=self._router_link(uplink) if isinstance(uplink, PeerConnector) else None,
        )

    def _router_link(self, connector: PeerConnector) -> RouterLinkStatus | None:
        """Return the link of a connector to a router; None for one of another type."""
        if connector.connector.type is not ConnectorType.ROUTER:
            return None
        traffic, network = connector.traffic, self._uplinks.network
        peerings = network.peerings.values() if network is not None else ()
        peering = next((each for each in peerings if each.traffic is traffic and each.peer_name), None)
        counts = traffic.sent, traffic.received, traffic.unanswered, traffic.outcomes
        if network is None or peering is None:
            return RouterLinkStatus("", 0, 0, *counts)
        cost = network.protocol.links[peering.key].cost
        return RouterLinkStatus(peering.peer_name, cost, peering.attached_links, *counts)

    def _bytes(self, part: LogSubscription) -> int:
        """Return the bytes of one log's waiting messages, in proportion to its size."""
        first, following = self._store.logs.bounds(part.log)
        waiting = part.backlog + part.outstanding
        return self._store.retention.log_bytes(part.log) * min(waiting, following - first) // max(following - first, 1)

    def _read_oldest(self, uplink: AnyConnector) -> None:
        """Read when the oldest waiting message was received, from the log with the largest backlog.

        The time is known when the read ends, before the next sample.
        """
        name = uplink.connector.name
        part = max(uplink.parts, key=lambda one: one.backlog + one.outstanding, default=None)
        if part is None or not part.backlog + part.outstanding:
            self._oldest.pop(name, None)
            return
        position = self._store.cursors.record(part.cursor).position

        def read(runs: Sequence[Stored]) -> None:
            for stored in runs[:1]:
                self._oldest[name] = stored.run.received_at / 1e9

        self._store.logs.read(part.log, position, 1, read)


def _forwarders(uplink: AnyConnector, forwarders: Sequence[Forwarder]) -> Iterator[ForwarderStatus]:
    waiting: dict[str, int] = {}
    for part in uplink.parts:
        waiting[part.name] = waiting.get(part.name, 0) + part.backlog + part.outstanding
    rejected = uplink.refused_here if isinstance(uplink, PeerConnector) else {}
    for forwarder in forwarders:
        if forwarder.connector == uplink.connector.name:
            backlog = waiting.get(f"{FORWARDER_PREFIX}{forwarder.connector}/{forwarder.name}", 0)
            yield ForwarderStatus(
                name=forwarder.name,
                direction=forwarder.direction.value,
                filter=forwarder.filter,
                remote_address=forwarder.remote_address,
                backlog_messages=backlog,
                fault=uplink.faults.get(forwarder.name),
                rejected=rejected.get(forwarder.name, 0),
            )
