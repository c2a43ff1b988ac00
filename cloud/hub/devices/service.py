"""Device registry of a hub on the event loop. The registry work runs in three threads: one changes, one reads, and one
searches, as a filter may take seconds.

`open`, later `close`. Long deletions are done in several transactions, the tenant's document last; one that was
interrupted is continued when it is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import sqlalchemy as sa

from cloud.hub.devices.credentials import SaltChanged, WantedCredentials
from cloud.hub.devices.limits import OWNED_TENANTS_MAX, WAITING_MAX
from cloud.hub.devices.tenants import EMPTY, NO_LIMIT, ReadTenant, stored_tenant
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_search import SearchQuery
from cloud.hub.registry.device_tenants import Check, DeviceTenantRow, DeviceTenants, FoundTenants, TenantChange
from cloud.hub.registry.devices import (
    DeviceRow,
    DevicesFull,
    FoundCredentials,
    FoundDevices,
    NewDeviceRow,
    RegisteredDevices,
    TenantLimits,
)
from cloud.hub.registry.local_devices import LocalDevice, LocalDevices
from cloud.hub.registry_thread import RegistryClosed, RegistryThread, database_of
from cloud.hub.tenants import Tenants

T = TypeVar("T")
_HASHINGS_MAX: Final = 3
"""Times that passwords are hashed for one request while others change the same credentials."""


class DevicesBusy(Exception):
    """Too many requests wait, or the hub starts or stops; the request may be repeated in some seconds."""


class DeviceTables:
    """Tables of devices on one connection."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tenants = DeviceTenants(database)
        self.devices = RegisteredDevices(database)
        self.local = LocalDevices(database)


class _BoundedThread:
    """Thread with a connection of its own, for a limited number of requests."""

    def __init__(self, name: str, registry: sa.URL, *, reading: bool = False) -> None:
        self._thread = RegistryThread(name, database_of(registry, reading=reading))
        self._waiting = 0
        self.open, self.close = self._thread.open, self._thread.close

    async def ask(self, work: Callable[[DeviceTables], T]) -> T:
        """Run `work` on the thread. Raises `DevicesBusy`, `RegistryError`, and what `work` raises."""
        if self._waiting >= WAITING_MAX:
            raise DevicesBusy(f"{WAITING_MAX} requests for devices wait already; try again in some seconds")
        self._waiting += 1
        try:
            return await self._thread.run(lambda database: work(DeviceTables(database)))
        except RegistryClosed as error:
            raise DevicesBusy(str(error)) from error
        finally:
            self._waiting -= 1


class DeviceRegistry:
    """Devices of all tenants. Methods raise `DevicesBusy`, `RegistryError`, and what `cloud.hub.registry.devices` and
    `device_tenants` raise."""

    def __init__(self, registry: sa.URL, quotas: Tenants, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self._changing = _BoundedThread("devices", registry)
        self._reading = _BoundedThread("devices-reading", registry, reading=True)
        self._searching = _BoundedThread("devices-searching", registry, reading=True)
        self._quotas = quotas
        self._hashing = 0
        """Requests in progress that set credentials."""
        self.now_us = now_us

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._changing.open()
        await self._reading.open()
        await self._searching.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._searching.close()
        await self._reading.close()
        await self._changing.close()

    # --- tenants ----------------------------------------------------------------------------------------------------

    async def tenant(self, tenant: str) -> DeviceTenantRow | None:
        """Return a tenant; None if unknown."""
        return await self._reading.ask(lambda tables: tables.tenants.get(tenant))

    async def search_tenants(self, owner: str | None, query: SearchQuery) -> FoundTenants:
        """Return a page of the tenants of an owner, or of all."""
        return await self._reading.ask(lambda tables: tables.tenants.search(owner, query))

    async def put_tenant(self, tenant: str, wanted: ReadTenant, owner: str, by: str, check: Check) -> int:
        """Add or replace a tenant; return its revision. `owner`: that of a new one."""
        change = TenantChange(tenant, wanted.text, wanted.anchors, self.now_us(), by)
        return await self._changing.ask(lambda tables: tables.tenants.put(change, owner, OWNED_TENANTS_MAX, check))

    async def remove_tenant(self, tenant: str, check: Check) -> None:
        """Remove a tenant with its devices."""
        if await self._changing.ask(lambda tables: tables.tenants.remove(tenant, check)):
            return
        await self.remove_devices(tenant)
        while not await self._changing.ask(lambda tables: tables.tenants.remove(tenant, _unchecked)):
            await self.remove_devices(tenant)  # others have added some meanwhile

    # --- devices ----------------------------------------------------------------------------------------------------

    async def device(self, tenant: str, device: str) -> DeviceRow:
        """Return a device."""
        return await self._reading.ask(lambda tables: tables.devices.get(tenant, device))

    async def search(self, tenant: str, query: SearchQuery) -> FoundDevices:
        """Return a page of the devices of a tenant."""
        worker = self._reading if query.is_page_by_id else self._searching
        return await worker.ask(lambda tables: tables.devices.search(tenant, query))

    async def add(self, new: NewDeviceRow, owner: str, *, implicit: bool) -> int:
        """Add a device; return its revision. `owner`: of its tenant; `implicit`: add the tenant if it is missing."""
        limits = TenantLimits(owner if implicit else None, lambda known: devices_max(self._quotas, known), EMPTY)
        try:
            return await self._changing.ask(lambda tables: tables.devices.add(new, limits))
        except DevicesFull:
            self._quotas.count_refusal(owner, "devices")
            raise

    async def replace(self, new: NewDeviceRow, check: Check) -> int:
        """Replace the registration of a device; return its revision."""
        return await self._changing.ask(lambda tables: tables.devices.replace(new, check))

    async def remove(self, tenant: str, device: str, check: Check) -> None:
        """Remove a device with its credentials."""
        await self._changing.ask(lambda tables: tables.devices.remove(tenant, device, check))

    async def remove_devices(self, tenant: str) -> int:
        """Remove all devices of a tenant, some in each transaction; return their number."""
        count = 0
        while removed := await self._changing.ask(lambda tables: tables.devices.remove_some(tenant)):
            count += removed
        return count

    async def local_devices(
        self, tenant: str, gateway: str | None, after: tuple[str, str] | None, limit: int
    ) -> list[LocalDevice]:
        """Return devices that were added at gateways, by name and gateway; see `LocalDevices.page`."""
        return await self._reading.ask(lambda tables: tables.local.page(tenant, gateway, after, limit))

    # --- credentials ------------------------------------------------------------------------------------------------

    async def credentials(self, tenant: str, device: str) -> FoundCredentials:
        """Return the credentials of a device."""
        return await self._reading.ask(lambda tables: tables.devices.credentials(tenant, device))

    async def set_credentials(self, tenant: str, device: str, wanted: WantedCredentials, check: Check) -> int:
        """Replace the credentials of a device; return their revision. Raises `InvalidDocument`."""
        if self._hashing >= WAITING_MAX:
            raise DevicesBusy(f"{WAITING_MAX} requests for credentials wait already; try again in some seconds")
        self._hashing += 1
        try:
            return await self._set_credentials(tenant, device, wanted, check)
        finally:
            self._hashing -= 1

    async def _set_credentials(self, tenant: str, device: str, wanted: WantedCredentials, check: Check) -> int:
        for _ in range(_HASHINGS_MAX):
            present = await self._changing.ask(lambda tables: tables.devices.credentials(tenant, device))
            await asyncio.to_thread(wanted.hash_passwords, present.rows)
            try:
                return await self._changing.ask(
                    lambda tables: tables.devices.set_credentials(
                        tenant, device, lambda known, rows: wanted.merge(stored_tenant(known.document), rows), check
                    )
                )
            except SaltChanged:
                continue
        raise DevicesBusy("others change these credentials all the time; try again in some seconds")


def devices_max(quotas: Tenants, tenant: DeviceTenantRow) -> int:
    """Return the number of devices that a tenant may have: the least of the quota and its own limit."""
    most, limits = quotas.of(tenant.owner).devices, stored_tenant(tenant.document).registration_limits
    own = limits.max_devices if limits is not None else NO_LIMIT
    return most if own == NO_LIMIT else min(most, own)


def _unchecked(revision: int | None) -> None:
    """Accept every revision."""
