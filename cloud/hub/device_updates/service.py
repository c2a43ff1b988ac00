"""Reports of devices about artefacts: from the batches of gateways into the registry, and out of it for requests.

A batch with reports is acknowledged when it has landed and its reports are in the registry. If the hub ends in between,
the gateway sends the batch again, and the registry takes what it does not know. Runs on the event loop; the registry
work runs in two threads with connections of their own, one for each direction, so reports are stored during a landing
and do not wait for queries.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.batch import Batch
from bridge.periodic_task import end_task
from cloud.hub.device_updates.limits import BATCHES_AT_ONCE, QUERIES_MAX
from cloud.hub.device_updates.reading import has_reports, read_reports
from cloud.hub.limits import TENANT_DEVICE_UPDATES_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates, UpdateCount, UpdateFilter, UpdateKey
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class DeviceUpdatesBusy(Exception):
    """Too many requests wait; the request may be repeated in some seconds."""


class _Stored(enum.Enum):
    """Result of storing reports."""

    YES = enum.auto()
    LATER = enum.auto()
    """The registry cannot be used now."""
    REFUSED = enum.auto()
    """Neither readable nor storable, now and later."""


class _WaitingBatch(NamedTuple):
    tenant: str
    gateway: str
    batch: Batch
    kept: Callable[[bool], None]


class HubDeviceUpdates:
    """Reports of the devices of all tenants. `open`, later `close`.

    Queries raise `RegistryError` and `DeviceUpdatesBusy`.
    """

    def __init__(self, registry: sa.URL) -> None:
        self._fault: str | None = None
        self._writer = RegistryThread("device-updates", database_of(registry))
        self._reader = RegistryThread("device-updates-reading", database_of(registry, reading=True))
        self._updates: DeviceUpdates | None = None
        """For the thread of the writer."""
        self._waiting: deque[_WaitingBatch] = deque()
        self._arrived = asyncio.Event()
        self._asked = 0
        self._storing: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Reason why reports cannot be stored, or not all of them; None if they can."""
        if self._fault is not None:
            return self._fault
        full = self._updates.full if self._updates is not None else []
        if not full:
            return None
        return (
            f"tenant {full[0]} has {TENANT_DEVICE_UPDATES_MAX} of them, the most that it may have: remove old artefacts"
        )

    async def open(self) -> None:
        """Open the registry, and start to store reports. Raises `RegistryError`."""
        await self._writer.open()
        await self._reader.open()
        self._storing = asyncio.get_running_loop().create_task(self._store_all(), name="reports of devices")

    async def close(self) -> None:
        """Close the registry; reports that are not stored come again. Idempotent."""
        storing, self._storing = self._storing, None
        await end_task(storing)
        await self._reader.close()
        await self._writer.close()

    # --- reports of gateways ----------------------------------------------------------------------------------------

    def handle_batch(self, tenant: str, gateway: str, batch: Batch, kept: Callable[[bool], None]) -> bool:
        """Queue a batch with reports; return False without any. `kept` is called later: with True when they are on
        disk, with False when they cannot be stored now."""
        if not has_reports(batch):
            return False
        self._waiting.append(_WaitingBatch(tenant, gateway, batch, kept))
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
        """Run a query on the thread that reads, within the limit of queries."""
        if self._asked >= QUERIES_MAX:
            raise DeviceUpdatesBusy("the hub is overloaded; try again in some seconds")
        self._asked += 1
        try:
            return await self._reader.run(lambda database: work(DeviceUpdates(database)))
        finally:
            self._asked -= 1

    async def _store_all(self) -> None:
        """Store reports, those of some batches at once."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                together = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCHES_AT_ONCE))]
                found = await self._store(together)
                if found is _Stored.REFUSED:  # one of them is the reason
                    found = await self._store_each(together)
                else:
                    self._answer(together, found is _Stored.YES)
                if found is _Stored.LATER:  # all others would wait for the same time-out
                    self._answer([*self._waiting], kept=False)
                    self._waiting.clear()

    async def _store_each(self, batches: Sequence[_WaitingBatch]) -> _Stored:
        """Store batches one by one, up to a fault of the registry. A batch that is refused alone is answered: its
        messages are in the lake, and it would be refused again."""
        for place, each in enumerate(batches):
            found = await self._store([each])
            if found is _Stored.LATER:
                self._answer(batches[place:], kept=False)
                return found
            self._answer([each], kept=True)
        return _Stored.YES

    @staticmethod
    def _answer(batches: Sequence[_WaitingBatch], kept: bool) -> None:
        for each in batches:
            try:
                each.kept(kept)
            except Exception:  # of one gateway: the others get their answers
                log.exception("gateway %s: a batch with reports cannot be answered", each.gateway)

    async def _store(self, batches: Sequence[_WaitingBatch]) -> _Stored:
        """Store the reports of batches."""

        def work(database: Database) -> None:
            updates = self._updates = self._updates or DeviceUpdates(database)
            reports: list[DeviceUpdate] = []
            now_us = database.transaction(database.now_us)
            for each in batches:
                reports += read_reports(each.tenant, each.gateway, each.batch, now_us)
            updates.record(reports)

        try:
            await self._writer.run(work)
        except RegistryError as error:
            if isinstance(error.__cause__, sa.exc.DataError | sa.exc.IntegrityError):
                log.exception("the registry refuses reports of devices about artefacts: internal error")
                return _Stored.REFUSED
            if self._fault is None:
                log.warning("reports of devices about artefacts cannot be stored yet, retrying: %s", error)
            self._fault = str(error)
            return _Stored.LATER
        except Exception:  # an internal error must not end the task, nor hold up a gateway
            log.exception("reports of devices about artefacts cannot be read: internal error")
            return _Stored.REFUSED
        self._fault = None
        return _Stored.YES
