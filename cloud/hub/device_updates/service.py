"""Reports of devices about artefacts: from the batches of gateways into the registry, and out of it for requests.

A batch with reports is acknowledged when it has landed and its reports are in the registry. If the hub ends in between,
the gateway sends the batch again, and the registry takes what it does not know. Runs on the event loop; the registry
work runs in a thread with a connection of its own, so reports are stored during a landing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.batch import Batch
from cloud.hub.device_updates.limits import QUERIES_MAX, REPORTS_AT_ONCE
from cloud.hub.device_updates.reading import has_reports, read_reports
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates, UpdateCount, UpdateFilter, UpdateKey
from cloud.hub.registry.opening import open_registry
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class DeviceUpdatesBusy(Exception):
    """Too many requests wait, or the hub starts or stops; the request may be repeated in some seconds."""


class _WaitingReports(NamedTuple):
    reports: Sequence[DeviceUpdate]
    kept: Callable[[bool], None]


class HubDeviceUpdates:
    """Reports of the devices of all tenants. `open`, later `close`. Queries raise `RegistryError` and
    `DeviceUpdatesBusy`."""

    def __init__(self, registry: sa.URL, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self.trouble: str | None = None
        """Reason why reports cannot be stored; None if they can."""
        self._url = registry
        self._now_us = now_us
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="device-updates")
        self._database: Database | None = None
        self._updates: DeviceUpdates | None = None
        self._waiting: deque[_WaitingReports] = deque()
        self._arrived = asyncio.Event()
        self._asked = 0
        self._storing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry, and start to store reports. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._database = await loop.run_in_executor(self._executor, lambda: open_registry(self._url).database)
        self._updates = DeviceUpdates(self._database)
        self._storing = loop.create_task(self._store_all(), name="reports of devices")

    async def close(self) -> None:
        """Close the registry; reports that are not stored come again. Idempotent."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await storing
        database, self._database, self._updates = self._database, None, None
        if database is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, database.close)
        self._executor.shutdown(wait=False)

    # --- reports of gateways ----------------------------------------------------------------------------------------

    def handle_batch(self, tenant: str, gateway: str, batch: Batch, kept: Callable[[bool], None]) -> bool:
        """Queue the reports in a batch; return False without any. `kept` is called later: with True when they are on
        disk, with False when they cannot be stored now."""
        if not has_reports(batch):
            return False
        reports = read_reports(tenant, gateway, batch, self._now_us())
        if not reports:
            return False
        self._waiting.append(_WaitingReports(reports, kept))
        self._arrived.set()
        return True

    # --- queries ----------------------------------------------------------------------------------------------------

    async def page(self, wanted: UpdateFilter, after: UpdateKey | None, limit: int) -> list[DeviceUpdate]:
        """Return reports by artefact, version and device, behind `after`."""
        return await self._ask(lambda updates: updates.page(wanted, after, limit))

    async def counts(self, wanted: UpdateFilter) -> list[UpdateCount]:
        """Return the number of devices by artefact, version and state."""
        return await self._ask(lambda updates: updates.counts(wanted))

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _ask(self, work: Callable[[DeviceUpdates], T]) -> T:
        """Run a query on the registry's thread, within the limit of queries."""
        if self._asked >= QUERIES_MAX:
            raise DeviceUpdatesBusy("the hub is overloaded; try again in some seconds")
        self._asked += 1
        try:
            return await self._in_thread(work)
        finally:
            self._asked -= 1

    async def _in_thread(self, work: Callable[[DeviceUpdates], T]) -> T:
        updates = self._updates
        if updates is None:
            raise DeviceUpdatesBusy("the hub is starting or stopping; try again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, updates)

    async def _store_all(self) -> None:
        """Store reports, as many as are there at once."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                together = [self._waiting.popleft()]
                count = len(together[0].reports)
                while self._waiting and count + len(self._waiting[0].reports) <= REPORTS_AT_ONCE:
                    together.append(self._waiting.popleft())
                    count += len(together[-1].reports)
                kept = await self._store([report for each in together for report in each.reports])
                for each in together:
                    each.kept(kept)

    async def _store(self, reports: Sequence[DeviceUpdate]) -> bool:
        """Store reports; return False if they cannot be stored now."""
        try:
            await self._in_thread(lambda updates: updates.record(reports))
        except (RegistryError, DeviceUpdatesBusy) as error:
            if self.trouble is None:
                log.warning("reports of devices about artefacts cannot be stored yet, retrying: %s", error)
            self.trouble = str(error)
            return False
        except Exception as error:  # an internal error must not end the task silently
            log.exception("reports of devices about artefacts cannot be stored: internal error")
            self.trouble = f"internal error: {type(error).__name__}"
            return False
        self.trouble = None
        return True
