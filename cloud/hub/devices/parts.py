"""Device registry of a hub, with what sends the devices to gateways."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import sqlalchemy as sa

from bridge.downlink import DownlinkSource
from bridge.hub_addresses import DEVICES
from cloud.hub.devices.downlink import DeviceDownlink
from cloud.hub.devices.pages import SignBytes
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.tenants import Tenants


class HubDeviceParts:
    """Both parts of one hub. `open`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        quotas: Tenants,
        now_us: Callable[[], int],
        sign: SignBytes | None,
        sources: MutableMapping[str, DownlinkSource],
    ) -> None:
        """`now_us`: UTC microseconds. `sign`: with the key of the authority at which gateways enrol; None: gateways get
        no devices. `sources` of messages for gateways; the devices are added."""
        self.registry = DeviceRegistry(registry, quotas, now_us)
        self.downlink = DeviceDownlink(registry, sign) if sign is not None else None
        """None: gateways get no devices."""
        if self.downlink is not None:
            sources[DEVICES] = self.downlink

    async def open(self) -> None:
        """Open both. Raises `RegistryError`."""
        await self.registry.open()
        if self.downlink is not None:
            await self.downlink.open()

    async def close(self) -> None:
        """Close both. Idempotent."""
        if self.downlink is not None:
            await self.downlink.close()
        await self.registry.close()
