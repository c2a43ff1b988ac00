"""Address spaces of a hub's tenants: a router with its store for each tenant's applications.

A space is opened when its tenant has a user, on a thread, because opening a store takes some 50 ms. It stays open until
the hub stops, or its tenant is removed. Messages between applications are stored as at a gateway, in
``DATA/spaces/<tenant>``; those of removed tenants are kept for some time (`cloud.hub.removed_folders`).
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
"""First level of the addresses for commands of applications (`cloud.hub.commands`)."""
REPLIES: Final = "command-reply/"
"""Prefix of the queues that keep outcomes of commands for an application."""
TABLE: Final = (
    (
        AddressRule("queue/#", AddressType.QUEUE),
        AddressRule(f"{COMMANDS}/#", AddressType.ANYCAST),
        AddressRule(f"{REPLIES}#", AddressType.QUEUE),
    ),
    AddressRule("#", AddressType.TOPIC),
)
"""Addresses of every space: queues below ``queue/``, commands handled by the hub, topics otherwise."""


class TenantSpace:
    """Address space of one tenant. Made inside the running loop."""

    def __init__(
        self, tenant: str, store: SqliteStore, drivers: Callable[[], Iterable[ConnectionDriver]], stored_bytes: int
    ) -> None:
        """`stored_bytes`: limit of stored bodies."""
        rules, default = TABLE
        self.tenant: Final = tenant
        self.containers = ContainerRegistry()
        self._store = store
        self._space = Space(store, AddressTable(rules, default), drivers, quota_bytes=stored_bytes, schedules=False)
        self.router: Final[Router] = self._space.router

    @property
    def has_live_subscription(self) -> bool:
        """Return whether a live subscription exists."""
        return not self.router.subscriptions.live.empty

    @property
    def stored_bytes(self) -> int:
        """Bytes of bodies in its queues and durable subscriptions."""
        return sum(account.used for _, account in self.router.quotas)

    def close(self) -> None:
        """Finish the last commit and close the store. Blocks."""
        self._space.stop()
        self.router.wills.finish()
        self._store.close()


class Spaces:
    """Open address spaces. `start`, later `stop`; inside a running loop."""

    def __init__(
        self,
        data: Path,
        drivers: Callable[[str], Iterable[ConnectionDriver]],
        opened: Callable[[TenantSpace], object] = lambda _space: None,
        tenants: Tenants | None = None,
        is_removed: Callable[[str], bool] = lambda _tenant: False,
    ) -> None:
        """`drivers` returns the connections of one tenant's applications; `opened` is called with each new space;
        `tenants` has the quotas; `is_removed` returns whether a tenant was removed, so that it has no space."""
        self.troubles: dict[str, str] = {}
        """Reason why a space is not open, by tenant."""
        self._data = data
        self._drivers = drivers
        self._opened = opened
        self._tenants = tenants or Tenants()
        self._is_removed = is_removed
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, TenantSpace] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[TenantSpace]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def get(self, tenant: str) -> TenantSpace | None:
        """Return the space of a tenant; None if it is not open, or the tenant was removed."""
        return None if self._is_removed(tenant) else self._open.get(tenant)

    async def start(self) -> None:
        """Wait for spaces that are being opened, and start the timer."""
        if self._opening:
            await asyncio.wait(self._opening.values())
        self._tick()

    def follow(self, tenants: Iterable[str]) -> None:
        """Open the spaces of these tenants, which have users."""
        for tenant in tenants:
            if tenant in self._open or tenant in self._opening or self._is_removed(tenant):
                continue
            if len(self._open) + len(self._opening) >= SPACES_MAX:
                self._failed(tenant, f"the limit of {SPACES_MAX} address spaces is reached")
                continue
            task = self._loop.create_task(self._make(tenant), name=f"space {tenant}")
            self._opening[tenant] = task

    async def wait_opened(self, tenant: str) -> None:
        """Wait for the space of a tenant if it is being opened."""
        if (opening := self._opening.get(tenant)) is not None:
            await asyncio.wait([opening])

    def close(self, tenant: str) -> None:
        """Close the space of a removed tenant, if it is open: `wait_opened` before, and for the end of the
        connections of its applications."""
        self.troubles.pop(tenant, None)
        if (space := self._open.pop(tenant, None)) is not None:
            space.close()

    async def stop(self) -> None:
        """Close all spaces."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._opening:
            await asyncio.wait(self._opening.values())
        await asyncio.sleep(0)  # let dropped connections detach from their sessions
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
        """Share the memory for slow applications equally among the tenants."""
        share = max(LIVE_WAITING_BYTES_MAX // len(self._open), LIVE_WAITING_BYTES_MIN)
        for space in self:
            space.router.pool.bytes_max = share

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        for space in self:
            space.router.tick()
