"""Devices in a registry, for tests without a hub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from cloud.hub.registry.device_tenants import DeviceTenants, TenantChange
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.opening import open_registry

NOW_US: Final = 1_800_000_000_000_000


class RegisteredRows:
    """Devices of tenant `acme`."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.now_us = NOW_US

    def work(self, change: Callable[[RegisteredDevices], Any]) -> None:
        with contextlib.closing(open_registry(self.url).database) as database:
            if DeviceTenants(database).get("acme") is None:
                DeviceTenants(database).put(
                    TenantChange("acme", "{}", (), self.now_us, "ann"), "acme", 9, lambda _: None
                )
            change(RegisteredDevices(database))

    def add(self, device: str, gateway: str = "gw1") -> None:
        self.now_us += 1
        document = json.dumps({"ext": {"waypost": {"gateways": [gateway]}}})
        row = NewDeviceRow("acme", device, document, [], self.now_us, "ann")
        self.work(lambda devices: devices.add(row, TenantLimits(None, lambda _: 99)))
