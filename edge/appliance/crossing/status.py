"""Watching the bridge of a running gateway: what waits, how fast it goes, and for how long there is room."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from bridge.message import Stored
from edge.appliance.crossing.documents import BridgeStatus, ConnectorStatus, ForwarderStatus
from edge.broker.configuration import Forwarder
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.router.peer_connector import PeerConnector
from edge.broker.router.uplinks import AnyConnector, Uplinks, is_to_hub
from edge.broker.store.contract import Store

RATE_S: Final = 60
"""Seconds a rate is taken over: one look a second is kept for each."""

SELDOM_S: Final = 10.0
"""How often the oldest message that waits is read, a segment of the store, and the medium asked for its room."""


class _RateSample(NamedTuple):
    at_s: float
    accepted: int
    backlog: int


class LinkRates:
    """What changed within the last minute."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[_RateSample]] = {}

    def look(self, name: str, at_s: float, accepted: int, backlog: int) -> None:
        """What a counter and a backlog are now."""
        looks = self._looks.setdefault(name, deque())
        looks.append(_RateSample(at_s, accepted, backlog))
        while looks[0].at_s < at_s - RATE_S:
            looks.popleft()

    def keep(self, names: set[str]) -> None:
        """Forget all others."""
        self._looks = {name: looks for name, looks in self._looks.items() if name in names}

    def of(self, name: str) -> tuple[float, float]:
        """(counted, by how much the backlog shrank), each a second."""
        looks = self._looks.get(name)
        if not looks or looks[-1].at_s <= looks[0].at_s:
            return 0.0, 0.0
        first, last = looks[0], looks[-1]
        passed_s = last.at_s - first.at_s
        return (last.accepted - first.accepted) / passed_s, (first.backlog - last.backlog) / passed_s


_STORED: Final = "$stored"
"""Among the rates: bytes taken into the store. No connector is called so."""


class BridgeWatch:
    """Looks at the bridge once a second, so that it can say how fast it is."""

    def __init__(
        self,
        uplinks: Uplinks,
        store: Store,
        *,
        stored_bytes: Callable[[], int],
        room_bytes: Callable[[], int | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stored_bytes`: bodies taken into the store so far; `room_bytes`: what it still has room for."""
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
        """By name, as they are now."""
        return {uplink.connector.name: uplink for uplink in self._uplinks}

    def look(self) -> None:
        """Once a second."""
        now = self._clock_s()
        for uplink in self._uplinks:
            name = uplink.connector.name
            self._rates.look(name, now, uplink.figures.messages_accepted, uplink.backlog)
            if now >= self._seldom_due_s:
                self._ask_oldest(uplink)
        if now >= self._seldom_due_s:
            self._seldom_due_s, self._room = now + SELDOM_S, self._room_bytes()
        self._rates.look(_STORED, now, self._stored_bytes(), 0)
        self._rates.keep({_STORED, *(uplink.connector.name for uplink in self._uplinks)})

    def status(self, gateway: str, public_key: str | None, forwarders: Sequence[Forwarder]) -> BridgeStatus:
        """Return the whole bridge; `forwarders` are those configured."""
        taken, _ = self._rates.of(_STORED)
        hours = self.autonomy_hours
        connectors = [self._connector(uplink, forwarders) for uplink in self._uplinks]
        left = self._uplinks.left
        return BridgeStatus(gateway, self._store.lineage.epoch, public_key, self._room, taken, hours, connectors, left)

    @property
    def autonomy_hours(self) -> float | None:
        """Hours until the store is full at the rate of the last minute; None when that is not known."""
        taken, _ = self._rates.of(_STORED)
        return self._room / taken / 3600 if self._room is not None and taken > 0 else None

    def _connector(self, uplink: AnyConnector, forwarders: Sequence[Forwarder]) -> ConnectorStatus:
        connector, state = uplink.connector, uplink.dialer.state
        rate, shrinks = self._rates.of(connector.name)
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
            manifest_due=manifests is not None and manifests.asked,
            forwarders=list(_forwarders(uplink, forwarders)),
            live_messages=progress.live_messages if progress is not None else 0,
            budget_bytes=progress.budget_bytes if progress is not None else None,
            spent_bytes=progress.spent_bytes if progress is not None else 0,
            quiet=progress is not None and progress.quiet,
        )

    def _bytes(self, part: LogSubscription) -> int:
        """Of what waits of one log, in proportion to all it keeps."""
        first, following = self._store.logs.bounds(part.log)
        waiting = part.backlog + part.outstanding
        return self._store.retention.log_bytes(part.log) * min(waiting, following - first) // max(following - first, 1)

    def _ask_oldest(self, uplink: AnyConnector) -> None:
        """When the oldest message that waits came: one run of the log of which most waits is read, a second later it
        is known."""
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
