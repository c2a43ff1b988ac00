"""Device registry of a hub, with what sends the devices to gateways."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

import sqlalchemy as sa

from bridge.downlink import DownlinkSource
from bridge.hub_addresses import DEVICES
from cloud.hub.devices.downlink import DeviceDownlink
from cloud.hub.devices.limits import UNSENT_INTERVAL_S
from cloud.hub.devices.pages import SignBytes
from cloud.hub.devices.service import DeviceRegistry, DevicesBusy
from cloud.hub.devices.upkeep import TargetKeeper
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError

UNSENT: Final = "gateways get no devices, also none that were disabled or removed: this hub has no key of its authority"


def _signer_of(enrolment: Enrolment | None) -> SignBytes | None:
    """Return what signs pages of devices: the authority, if the hub has its key itself. Each page is signed for one
    gateway when it is sent, which an authority elsewhere does not do."""
    authority = enrolment.authority if enrolment is not None else None
    return authority.sign if isinstance(authority, OwnAuthority) else None


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
        """`now_us`: UTC microseconds. Without `enrolment`, or without the key of its authority, gateways get no
        devices. `sources` of messages for gateways; the devices are added."""
        sign = _signer_of(enrolment)
        self._unsigned = enrolment is not None and sign is None
        """True where gateways have certificates, and pages for them cannot be signed here."""
        self._unsent = False
        self._watching: asyncio.Task[None] | None = None
        self.registry = DeviceRegistry(registry, quotas, now_us)
        self.downlink = DeviceDownlink(registry, sign) if sign is not None else None
        """None: gateways get no devices."""
        self._upkeep = TargetKeeper(registry)
        if self.downlink is not None:
            sources[DEVICES] = self.downlink

    @property
    def trouble(self) -> str | None:
        """Reason why some gateways do not get their devices; None if all do."""
        if self.downlink is None:
            return UNSENT if self._unsent else None
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
        if self.downlink is not None:
            await self.downlink.open()
        elif self._unsigned:
            await self._look()
            self._watching = asyncio.create_task(self._watch(), name="devices without a signature")

    async def close(self) -> None:
        """Close them. Idempotent."""
        await self._upkeep.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        if self.downlink is not None:
            await self.downlink.close()
        await self.registry.close()

    async def _watch(self) -> None:
        """Look again and again whether there are devices that no gateway gets."""
        while True:
            await asyncio.sleep(UNSENT_INTERVAL_S)
            await self._look()

    async def _look(self) -> None:
        with contextlib.suppress(DevicesBusy, RegistryError):  # the next look may succeed
            self._unsent = await self.registry.has_devices_for_gateways()
