"""Availability of this hub among the others of its registry: from the first connection that it takes to its drain."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable

import sqlalchemy as sa

from bridge.version import VERSION
from cloud.hub.committer import Committer
from cloud.hub.connections import Connections
from cloud.hub.danger_upkeep import DangerUpkeep
from cloud.hub.draining import HubDrain, drained
from cloud.hub.fleet import FleetState
from cloud.hub.registry.hubs import HubRecord, HubState
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.replicas import HubReplicas
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)


class HubAvailability:
    """State of one hub for orchestrators and for other hubs. `open` when it listens, later `drain`, then `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        fleet: FleetState,
        committer: Committer,
        connections: Connections,
        *,
        hint: ChangeHint,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        """`hub`: writer id; `hint` is given when gateways connect or disconnect at other hubs; `clock`: monotonic
        seconds; `now_us`: UTC microseconds."""
        self._hub = hub
        self._fleet = fleet
        self._committer = committer
        self._connections = connections
        self._clock = clock
        self._now_us = now_us
        self._started_us = now_us()
        self._state = HubState.SERVING
        self._port: int | None = None
        """Port of the listener for gateways; None before it listens."""
        self.replicas = HubReplicas(
            registry, hub, fleet, describe=self._describe, returned=self._write_presence, hint=hint, clock=clock
        )
        self._columns = DangerUpkeep(registry, hub)
        committer.follow_replicas(lambda: self.replicas.count)

    async def open(self, port: int) -> None:
        """Let the other hubs know that this one listens, and follow them. Raises `RegistryError`."""
        self._port = port
        await self.replicas.open()
        self.replicas.start()
        self._columns.start()

    async def drain(self, seconds: float) -> None:
        """Take no new connections. While other hubs serve, close the open ones in slices within this time."""
        self._state = HubState.DRAINING
        self._connections.stop_accepting()
        drivers = list(self._connections.listener.drivers)
        if not seconds or not drivers or not self.replicas.others_serve:
            return
        log.info("draining: closing %d connections in slices, within %g s", len(drivers), seconds)
        with contextlib.suppress(RegistryError):
            await self.replicas.look()
        await HubDrain(seconds, clock=self._clock).run(drained(drivers))

    async def close(self) -> None:
        """Let the other hubs know that this one has stopped. Idempotent."""
        await self._columns.close()
        await self.replicas.close()

    def unready(self) -> str | None:
        """Return why the hub takes no new connections; None if it takes them."""
        if self._port is None:
            return "the hub does not listen yet"
        if self._state is not HubState.SERVING:
            return "the hub stops"
        return None if self.replicas.schema_fits else "the registry has the tables of an older program"

    def _describe(self) -> HubRecord:
        """Return the record of this hub for the others."""
        name = f"{socket.gethostname()}:{self._port}"[:255]
        connections = len(self._connections.listener.drivers)
        return HubRecord(self._hub, name, VERSION, self._state.value, self._started_us, self._now_us(), connections)

    def _write_presence(self) -> None:
        """Write again which gateways are connected: another hub had counted them as disconnected."""
        sessions = (gateway.session for gateway in self._fleet.gateways.values())
        self._committer.repeat_presence(session for session in sessions if session is not None)
