"""Device registry of a hub, with what sends the devices to gateways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

import sqlalchemy as sa

from bridge.downlink import DownlinkSource
from bridge.hub_addresses import DEVICES
from cloud.hub.devices.downlink import DeviceDownlink
from cloud.hub.devices.page_sources import AuthorityPages, OwnPages
from cloud.hub.devices.reports import GatewayDeviceReports
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.devices.upkeep import TargetKeeper
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.hub.tenants import Tenants

UNSIGNED: Final = "gateways get no changes of their devices, also none that were disabled or removed"

UNREPORTED: Final = "what gateways report about devices is not stored"


def _make_downlink(registry: sa.URL, enrolment: Enrolment | None) -> DeviceDownlink | None:
    """Return what sends devices to gateways; None at a hub without an authority, where gateways get none."""
    if enrolment is None:
        return None
    reader = RegistryThread("devices-of-gateways", database_of(registry, reading=True))
    if enrolment.remote is not None:
        return DeviceDownlink(registry, reader, AuthorityPages(reader, enrolment.remote))
    if isinstance(enrolment.authority, OwnAuthority):
        return DeviceDownlink(registry, reader, OwnPages(reader, enrolment.authority.sign))
    return None


class HubDeviceParts:
    """Parts of one hub. `open`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        quotas: Tenants,
        now_us: Callable[[], int],
        enrolment: Enrolment | None,
        sources: MutableMapping[str, DownlinkSource],
    ) -> None:
        """`now_us`: UTC microseconds. Without `enrolment` gateways get no devices. `sources` of messages for gateways;
        the devices are added."""
        self.registry = DeviceRegistry(registry, quotas, now_us)
        self.downlink = _make_downlink(registry, enrolment)
        """None: gateways get no devices."""
        self._upkeep = TargetKeeper(registry)
        self.reports = GatewayDeviceReports(registry, quotas)
        """Reports of gateways about devices."""
        if self.downlink is not None:
            sources[DEVICES] = self.downlink

    @property
    def trouble(self) -> str | None:
        """Reason why some gateways do not get their devices; None if all do."""
        if self.reports.trouble is not None:
            return f"{UNREPORTED}: {self.reports.trouble}"
        if self.downlink is None:
            return None
        if self.downlink.unsigned is not None:
            return f"{UNSIGNED}: {self.downlink.unsigned}"
        for (tenant, gateway), why in self.downlink.refused.items():
            others = len(self.downlink.refused) - 1
            more = f", and {others} more gateways" if others else ""
            return f"gateway {gateway} of tenant {tenant} does not get its devices{more}: {why}"
        return self.downlink.trouble

    @property
    def figures(self) -> Mapping[str, int]:
        """Counts since the start, and gateways `without` their devices; empty without a downlink."""
        if self.downlink is None:
            return {}
        return Counter({**self.downlink.figures, "without": len(self.downlink.refused)})

    async def open(self) -> None:
        """Open them. Raises `RegistryError`."""
        await self.registry.open()
        self._upkeep.open()
        await self.reports.open()
        if self.downlink is not None:
            await self.downlink.open()

    async def close(self) -> None:
        """Close them. Idempotent."""
        await self.reports.close()
        await self._upkeep.close()
        if self.downlink is not None:
            await self.downlink.close()
        await self.registry.close()
