"""Devices and what sends them to gateways, at a hub without the key of its authority."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import sqlalchemy as sa

from cloud.hub.devices.parts import UNSIGNED, HubDeviceParts
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.registry.device_targets import GATEWAY
from cloud.hub.registry.devices import NewDeviceRow
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import device_targets, device_tenants
from cloud.hub.tenants import Tenants

NOW = 1_800_000_000_000_000
WAIT_S = 60.0


def parts_at(path: Path, *, keyless: bool) -> HubDeviceParts:
    enrolment = cast(Enrolment, SimpleNamespace(remote=object())) if keyless else None
    return HubDeviceParts(sa.make_url(f"sqlite:///{path}"), Tenants(), lambda: NOW, enrolment, {})


async def add(parts: HubDeviceParts, **extension: object) -> None:
    document = json.dumps({"enabled": True, "ext": {"waypost": extension}})
    await parts.open()
    try:
        row = NewDeviceRow("default", f"pump{len(extension)}", document, [], NOW, "ann")
        await parts.registry.add(row, "default", implicit=True)
    finally:
        await parts.close()


def test_pages_that_nobody_signs_are_reported(tmp_path: Path) -> None:
    parts = parts_at(tmp_path / "registry.db", keyless=True)
    assert parts.downlink is not None
    assert parts.trouble is None
    parts.downlink.unsigned = "the authority is away"
    assert (parts.trouble or "").startswith(UNSIGNED)


def test_hub_without_an_authority_sends_no_devices(tmp_path: Path) -> None:
    parts = parts_at(tmp_path / "registry.db", keyless=False)
    assert (parts.downlink, parts.trouble) == (None, None)


def test_hub_without_the_key_keeps_targets_too(tmp_path: Path) -> None:
    """An older program has added a device without its targets."""
    registry = tmp_path / "registry.db"
    asyncio.run(add(parts_at(registry, keyless=True), gateways=["gw1"]))
    with contextlib.closing(open_registry(sqlite_url(registry)).database) as database:
        database.transaction(lambda tx: tx.execute(device_targets.delete()))
        older = device_tenants.update().values(tracked_revision=device_tenants.c.tracked_revision - 1)
        database.transaction(lambda tx: tx.execute(older))

        def targets() -> list[str]:
            return list(database.transaction(lambda tx: tx.execute(sa.select(device_targets.c.target)).scalars()))

        async def caught_up() -> None:
            parts = parts_at(registry, keyless=True)
            await parts.open()
            try:
                async with asyncio.timeout(WAIT_S):
                    while not targets():
                        await asyncio.sleep(0)
            finally:
                await parts.close()

        asyncio.run(caught_up())
        assert targets() == [f"{GATEWAY}gw1"]
