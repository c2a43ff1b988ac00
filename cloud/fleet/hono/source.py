"""Registry of Hono as its files describe it, by tenant and device. Documents stay encoded until they are imported."""

from __future__ import annotations

import re
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

_TENANTS: Final = "tenants"
"""Begin of names that only files with pages of tenants may have."""
_TENANT_PAGES: Final = re.compile(r"tenants(-\d+)?\.json")


class HonoRegistry:
    """Tenants, devices and credentials of all files."""

    def __init__(self) -> None:
        self.tenants: dict[str, msgspec.Raw] = {}
        self.devices: dict[str, dict[str, msgspec.Raw]] = {}
        self.credentials: dict[str, dict[str, list[msgspec.Raw]]] = {}
        self.exported: set[tuple[str, str]] = set()
        """Tenant and device with credentials of MongoDB, where Hono may have encrypted the keys."""
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
                    if each.exported:
                        self.exported.add((each.tenant, each.device))
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
        made.add(read_records(read_content(path), path.name, PageMeaning(_has_tenants(path.name), tenant)))
    return made


def _has_tenants(name: str) -> bool | None:
    """Return whether pages in a file with this name have tenants; None if it is unclear."""
    if _TENANT_PAGES.fullmatch(name):
        return True
    return None if name.lower().startswith(_TENANTS) else False
