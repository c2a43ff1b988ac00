"""Registry of Hono as its files describe it, by tenant and device. Documents stay encoded until they are imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from cloud.fleet.hono.records import (
    HonoCredentialsRecord,
    HonoDeviceRecord,
    HonoRecord,
    HonoTenantRecord,
    PageMeaning,
    UnknownHonoRecord,
    read_content,
    read_records,
)

TENANTS: Final = "tenants"
"""Begin of the name of a file with pages of tenants."""


class HonoRegistry:
    """Tenants, devices and credentials of all files."""

    def __init__(self) -> None:
        self.tenants: dict[str, msgspec.Raw] = {}
        self.devices: dict[str, dict[str, msgspec.Raw]] = {}
        self.credentials: dict[str, dict[str, list[msgspec.Raw]]] = {}
        self.unknown: list[UnknownHonoRecord] = []
        self.twice: list[tuple[str, str]] = []
        """Tenant and device (empty: the tenant) with two different documents; the last one is taken, as in Hono."""

    def add(self, records: Iterable[HonoRecord]) -> None:
        """Add the records of a file. Raises `HonoFileError`."""
        for each in records:
            match each:
                case HonoTenantRecord():
                    if self.tenants.get(each.tenant, each.document) != each.document:
                        self.twice.append((each.tenant, ""))
                    self.tenants[each.tenant] = each.document
                case HonoDeviceRecord():
                    devices = self.devices.setdefault(each.tenant, {})
                    if devices.get(each.device, each.document) != each.document:
                        self.twice.append((each.tenant, each.device))
                    devices[each.device] = each.document
                case HonoCredentialsRecord():
                    owners = self.credentials.setdefault(each.tenant, {})
                    owners.setdefault(each.device, []).extend(each.credentials)
                case UnknownHonoRecord():
                    self.unknown.append(each)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return sum(map(len, self.devices.values()))


def read_registry(files: Iterable[Path], tenant: str) -> HonoRegistry:
    """Read the files of a registry. `tenant`: of devices in pages of the management API. Raises `HonoFileError`."""
    made = HonoRegistry()
    for path in files:
        meaning = PageMeaning(path.name.startswith(TENANTS), tenant)
        made.add(read_records(read_content(path), path.name, meaning))
    return made
