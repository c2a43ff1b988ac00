"""Counts the known and the connected gateways of the registry, for status, metrics and quotas.

Runs on the event loop; the registry is read in a thread of its own. After a failure the numbers stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.fleet import FleetCount, FleetState
from cloud.hub.limits import COUNTED_EVERY_S, COUNTED_REST
from cloud.hub.registry.database import Database
from cloud.hub.registry.fleet_counts import ConnectionCount, count_connections
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

COUNT_PAUSE_S = 1.0
"""Shortest pause between two counts: connections of many gateways change the numbers once."""


class GatewayCounter:
    """Counts the gateways. `open`, later `close`."""

    def __init__(self, fleet: FleetState, registry: sa.URL, *, hint: ChangeHint, clock: Callable[[], float]) -> None:
        """`hint` is given when gateways connect or disconnect; `clock`: monotonic seconds."""
        self._hint = hint
        self._fleet = fleet
        self._thread = RegistryThread("numbers of connections", database_of(registry, reading=True))
        self._clock = clock
        self._counting = PeriodicTask(
            "numbers of gateways", self._count_again, COUNT_PAUSE_S,
            log=log, failed="the numbers of gateways are not counted", expected=(RegistryError,), wait=self._rest,
        )  # fmt: skip

    async def open(self) -> None:
        """Open the registry, and start to count. Raises `RegistryError`."""
        await self._thread.open()
        self._counting.start()

    async def close(self) -> None:
        """Stop, and close the registry. Idempotent."""
        await self._counting.stop()
        await self._thread.close()

    async def count(self) -> None:
        """Count once. Raises `RegistryError`."""
        self._fleet.counted = _sum(await self._thread.run(_read), self._fleet.hub)

    async def _count_again(self) -> float:
        """Count, and return the seconds to rest: longer after a slow count."""
        began = self._clock()
        await self.count()
        return max(COUNT_PAUSE_S, COUNTED_REST * (self._clock() - began))

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._hint.wait(COUNTED_EVERY_S)


def _read(database: Database) -> list[ConnectionCount]:
    return database.transaction(count_connections)


def _sum(found: Sequence[ConnectionCount], hub: str) -> FleetCount:
    """Return the numbers by tenant and hub, without the connections to one hub."""
    known, elsewhere, hubs = Counter[str](), Counter[str](), Counter[str]()
    for each in found:
        known[each.tenant] += each.gateways
        if each.connected and each.hub not in (None, hub):
            elsewhere[each.tenant] += each.gateways
            hubs[each.hub or ""] += each.gateways
    return FleetCount(known, elsewhere, hubs)
