"""The address spaces of a hub's tenants: a router with its store each, for the tenant's applications.

A space is opened when its tenant has a user, on a thread, as opening a store takes some 50 ms; it is there until the
hub stops. What its applications send to one another is kept as at a gateway: in ``DATA/spaces/<tenant>``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bridge.transport.driver import ConnectionDriver
from cloud.hub.limits import LIVE_WAITING_BYTES_MAX, LIVE_WAITING_BYTES_MIN, SPACES_MAX
from cloud.hub.tenants import Tenants
from edge.broker.amqp.containers import ContainerRegistry
from edge.broker.limits import TICK_S
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.router.router import Router
from edge.broker.space import Space
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import SqliteStore, open_store

log = logging.getLogger(__name__)

FOLDER: Final = "spaces"
COMMANDS: Final = "command"
"""First level of the addresses applications send commands to (`cloud.hub.commands`)."""
REPLIES: Final = "command-reply/"
"""Begins the queues in which what became of commands waits for an application."""
TABLE: Final = (
    (
        AddressRule("queue/#", AddressType.QUEUE),
        AddressRule(f"{COMMANDS}/#", AddressType.ANYCAST),
        AddressRule(f"{REPLIES}#", AddressType.QUEUE),
    ),
    AddressRule("#", AddressType.TOPIC),
)
"""Addresses of every space: names below ``queue/`` are queues, commands are taken by the hub, the others are topics."""


class TenantSpace:
    """The space of one tenant. Made inside the running loop."""

    def __init__(
        self, tenant: str, store: SqliteStore, drivers: Callable[[], Iterable[ConnectionDriver]], stored_bytes: int
    ) -> None:
        """`stored_bytes`: of bodies it keeps at most."""
        rules, default = TABLE
        self.tenant: Final = tenant
        self.containers = ContainerRegistry()
        self._store = store
        self._space = Space(store, AddressTable(rules, default), drivers, quota_bytes=stored_bytes)
        self.router: Final[Router] = self._space.router

    @property
    def listened(self) -> bool:
        """Somebody receives something live."""
        return not self.router.subscriptions.live.empty

    def close(self) -> None:
        """Finish the last commit, and close the store. Blocks."""
        self._space.stop()
        self.router.wills.finish()
        self._store.close()


class Spaces:
    """Those that are open. `start`, later `stop`; inside a running loop."""

    def __init__(
        self,
        data: Path,
        drivers: Callable[[str], Iterable[ConnectionDriver]],
        opened: Callable[[TenantSpace], object] = lambda _space: None,
        tenants: Tenants | None = None,
    ) -> None:
        """`drivers`: of the connections of one tenant's applications; `opened` hears of each space that is; `tenants`:
        their quotas."""
        self.troubles: dict[str, str] = {}
        """Why a tenant's space is not open, by tenant."""
        self._data = data
        self._drivers = drivers
        self._opened = opened
        self._tenants = tenants or Tenants()
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, TenantSpace] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[TenantSpace]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def get(self, tenant: str) -> TenantSpace | None:
        """The space of a tenant; None where it is not open."""
        return self._open.get(tenant)

    async def start(self) -> None:
        """Wait for those that are being opened, and keep house."""
        if self._opening:
            await asyncio.wait(self._opening.values())
        self._tick()

    def follow(self, tenants: Iterable[str]) -> None:
        """These tenants have users: open the spaces that are not."""
        for tenant in tenants:
            if tenant in self._open or tenant in self._opening:
                continue
            if len(self._open) + len(self._opening) >= SPACES_MAX:
                self._failed(tenant, f"a hub has {SPACES_MAX} spaces at most")
                continue
            task = self._loop.create_task(self._make(tenant), name=f"space {tenant}")
            self._opening[tenant] = task

    async def stop(self) -> None:
        """Close all."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._opening:
            await asyncio.wait(self._opening.values())
        await asyncio.sleep(0)  # connections that were dropped have told their sessions then
        for space in self:
            space.close()
        self._open.clear()

    # --- inside -----------------------------------------------------------------------------------------------

    async def _make(self, tenant: str) -> None:
        make = partial(open_store, self._data / FOLDER / tenant, post=self._loop.call_soon_threadsafe)
        try:
            store = await asyncio.to_thread(make)
        except StoreError as error:
            self._failed(tenant, str(error))
        else:
            self.troubles.pop(tenant, None)
            stored_bytes = self._tenants.of(tenant).stored_bytes
            space = self._open[tenant] = TenantSpace(tenant, store, partial(self._drivers, tenant), stored_bytes)
            self._opened(space)
            self._share_memory()
        finally:
            del self._opening[tenant]

    def _failed(self, tenant: str, why: str) -> None:
        if self.troubles.get(tenant) != why:
            log.error("the address space of tenant %s is not open: %s", tenant, why)
        self.troubles[tenant] = why

    def _share_memory(self) -> None:
        """What waits for slow applications is bounded in all, and alike for every tenant."""
        share = max(LIVE_WAITING_BYTES_MAX // len(self._open), LIVE_WAITING_BYTES_MIN)
        for space in self:
            space.router.pool.bytes_max = share

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        for space in self:
            space.router.tick()
