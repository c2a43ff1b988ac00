"""Model of a gateway that applies pages of devices, and the devices that it should have."""

from __future__ import annotations

from bridge.device_pages import DeviceEntry, DevicePage, digest_of
from cloud.hub.devices.pages import make_page, read_cursor
from cloud.hub.groups import Key
from cloud.hub.registry.device_changes import DeviceChanges


class PageGateway:
    """Gateway that keeps the devices of pages in memory."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.cursor = ""
        self.devices: dict[str, dict[str, DeviceEntry]] = {}
        self.enabled: dict[str, bool] = {}
        self.pages = 0

    def apply(self, page: DevicePage) -> None:
        """Apply a page as a gateway does."""
        assert page.base == digest_of(self.cursor)
        assert (page.tenant, page.gateway) == self.key
        there = self.devices.setdefault(page.devices_of, {})
        for name in [each for each in there if page.range is not None and page.range.covers(each)]:
            del there[name]
        for name in page.removed:
            there.pop(name, None)
        there.update({each.device: each for each in page.entries})
        self.enabled[page.devices_of] = page.enabled
        self.cursor = page.cursor
        self.pages += 1

    def fetch(self, changes: DeviceChanges, *, most: int = 1_000, rows: int = 100, registry: str = "r") -> int:
        """Connect and get all pages; return their number."""
        cursor = read_cursor(self.cursor, registry)
        for number in range(most):
            found = changes.read(self.key, cursor, rows)
            if found.changes is None:
                return number
            made = make_page(self.key, found.changes, self.cursor)
            self.apply(made.page)
            cursor = made.cursor
        return most

    def names(self, tenant: str = "acme") -> list[str]:
        """Return the ids of the devices of a tenant."""
        return sorted(self.devices.get(tenant, {}))
