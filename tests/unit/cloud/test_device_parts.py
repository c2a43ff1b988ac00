"""Devices and what sends them to gateways, at a hub without the key of its authority."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import sqlalchemy as sa

from cloud.hub.devices.parts import HubDeviceParts
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.registry.devices import NewDeviceRow
from cloud.hub.tenants import Tenants

NOW = 1_800_000_000_000_000


def parts_at(path: Path, *, keyless: bool) -> HubDeviceParts:
    enrolment = cast(Enrolment, SimpleNamespace(authority=object())) if keyless else None
    return HubDeviceParts(sa.make_url(f"sqlite:///{path}"), Tenants(), lambda: NOW, enrolment, {})


async def trouble_after_opening(parts: HubDeviceParts) -> str | None:
    await parts.open()
    try:
        return parts.trouble
    finally:
        await parts.close()


async def add(parts: HubDeviceParts, **extension: object) -> None:
    document = json.dumps({"enabled": True, "ext": {"waypost": extension}})
    await parts.open()
    try:
        row = NewDeviceRow("default", f"pump{len(extension)}", document, [], NOW, "ann")
        await parts.registry.add(row, "default", implicit=True)
    finally:
        await parts.close()


def test_devices_that_no_gateway_gets_are_reported(tmp_path: Path) -> None:
    registry = tmp_path / "registry.db"

    def trouble(*, keyless: bool = True) -> str | None:
        return asyncio.run(trouble_after_opening(parts_at(registry, keyless=keyless)))

    assert trouble() is None
    asyncio.run(add(parts_at(registry, keyless=True)))
    assert trouble() is None, "no gateway is meant"
    asyncio.run(add(parts_at(registry, keyless=True), gateways=["gw1"]))
    assert trouble() is not None
    assert trouble(keyless=False) is None, "gateways have no certificates there"
