"""Upkeep of the targets of devices, at every hub: also at one that sends gateways nothing, as tombstones would stay.

It runs in a thread with a connection of its own, for minutes after an older program has changed devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.devices.limits import UPKEEP_INTERVAL_S
from cloud.hub.registry.device_targets import TargetUpkeep
from cloud.hub.registry.opening import open_registry
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)


class TargetKeeper:
    """Upkeep of one hub. `open`, later `close`."""

    def __init__(self, registry: sa.URL) -> None:
        self._url = registry
        self._stopping = threading.Event()
        self._keeping = PeriodicTask(
            "targets of devices", self._keep, UPKEEP_INTERVAL_S,
            log=log, failed="the targets of devices are not kept", expected=(RegistryError,),
        )  # fmt: skip

    def open(self) -> None:
        """Start it, within a running loop."""
        self._keeping.start()

    async def close(self) -> None:
        """End it. Work in progress ends after its transaction. Idempotent."""
        self._stopping.set()
        await self._keeping.stop()

    async def _keep(self) -> None:
        await asyncio.to_thread(self._keep_once)

    def _keep_once(self) -> None:
        """Catch up with older programs, and drop tombstones."""
        with contextlib.closing(open_registry(self._url).database) as database:
            upkeep = TargetUpkeep(database, self._stopping.is_set)
            for tenant in upkeep.untracked():
                changes = upkeep.track_tenant(tenant)
                log.info("tenant %s: caught up with %d devices that an older program has changed", tenant, changes)
            if dropped := upkeep.drop_tombstones():
                log.info("dropped %d notes of removed devices", dropped)
