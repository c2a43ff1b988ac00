"""Devices that were added at gateways, as their gateways report them: names only, never passwords.

A gateway reports its whole list in parts. Each part names the position that the registry has before it, so that a part
that comes late, or from a hub that the gateway has left, changes nothing. The position is drawn by the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from bridge.device_reports import LOCAL_DEVICES_MAX, LocalDevicesCheck, LocalDevicesPart
from cloud.hub.groups import Key
from cloud.hub.labels import parse_selector
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_targets import GATEWAY, SELECTOR
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.schema import device_targets, gateways, local_device_lists, local_devices


class ListOutOfStep(Exception):
    """A report does not continue the position of the registry."""

    def __init__(self, position: str) -> None:
        super().__init__(position)
        self.position = position
        """Position of the registry; empty before the first report."""


class GatewayForgotten(Exception):
    """The gateway was forgotten."""


class LocalDevicesFull(Exception):
    """A gateway reports more devices than the registry keeps; the message is the reason, for the gateway."""


class LocalDevice(NamedTuple):
    """Device that was added at a gateway."""

    device: str
    gateway: str
    conflict: bool
    """The registry has given this gateway a device with its name, which is not let in there."""


class LocalDevices:
    """Lists of gateways, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self, gateway: Key, report: LocalDevicesCheck) -> None:
        """Take another position, if the list has the digest of a report. Raises `ListOutOfStep`, `GatewayForgotten`."""

        def work(tx: sa.Connection) -> None:
            position, digest = _position(tx, gateway)
            if digest != report.digest:
                raise ListOutOfStep(position)
            _put_position(tx, gateway, report.position, digest)

        self._database.transaction(work)

    def replace(self, gateway: Key, report: LocalDevicesPart) -> None:
        """Replace a range of the list. Raises `ListOutOfStep`, `GatewayForgotten`, `LocalDevicesFull`."""

        def work(tx: sa.Connection) -> None:
            position, _ = _position(tx, gateway)
            if position != report.base:
                raise ListOutOfStep(position)
            columns, (tenant, name) = local_devices.c, gateway
            mine = [columns.tenant == tenant, columns.gateway == name, columns.device > report.after]
            if report.until is not None:
                mine.append(columns.device <= report.until)
            tx.execute(local_devices.delete().where(*mine))
            rows = [{"tenant": tenant, "gateway": name, "device": each} for each in report.names]
            if rows:
                tx.execute(local_devices.insert(), rows)
                count = sa.select(sa.func.count()).where(columns.tenant == tenant, columns.gateway == name)
                if tx.execute(count).scalar_one() > LOCAL_DEVICES_MAX:
                    raise LocalDevicesFull(
                        f"more than {LOCAL_DEVICES_MAX} devices were added at the gateway, the most that the registry "
                        "lists; register them at the hub"
                    )
            _put_position(tx, gateway, report.position, report.digest)

        self._database.transaction(work)

    def page(self, tenant: str, gateway: str | None, after: tuple[str, str] | None, limit: int) -> list[LocalDevice]:
        """Return devices of a tenant by name and gateway. `gateway`: None for all; `after`: name and gateway of the
        last one before."""

        def work(tx: sa.Connection) -> list[LocalDevice]:
            columns = local_devices.c
            wanted = sa.select(columns.device, columns.gateway).where(columns.tenant == tenant)
            if gateway is not None:
                wanted = wanted.where(columns.gateway == gateway)
            if after is not None:
                wanted = wanted.where(sa.tuple_(columns.device, columns.gateway) > sa.tuple_(*map(sa.literal, after)))
            rows = tx.execute(wanted.order_by(columns.device, columns.gateway).limit(limit)).all()
            given = _given(tx, tenant, sorted({row.device for row in rows}))
            labels = labels_of(tx, tenant, sorted({row.gateway for row in rows})) if given else {}
            return [
                LocalDevice(device, name, _concerns(given.get(device, ()), name, labels.get(name, {})))
                for device, name in rows
            ]

        return self._database.transaction(work)


def _position(tx: sa.Connection, gateway: Key) -> tuple[str, str]:
    """Return position and digest of a list; empty ones before the first report. Raises `GatewayForgotten`."""
    tenant, name = gateway
    forgotten = (gateways.c.tenant == tenant, gateways.c.name == name, gateways.c.forgotten_at.is_not(None))
    if tx.execute(sa.select(gateways.c.name).where(*forgotten)).first() is not None:
        raise GatewayForgotten
    columns = local_device_lists.c
    query = sa.select(columns.position, columns.digest).where(columns.tenant == tenant, columns.gateway == name)
    row = tx.execute(query).first()
    return ("", "") if row is None else (row.position, row.digest)


def _put_position(tx: sa.Connection, gateway: Key, position: str, digest: str) -> None:
    columns, (tenant, name) = local_device_lists.c, gateway
    mine = (columns.tenant == tenant, columns.gateway == name)
    values = {"position": position, "digest": digest}
    if not tx.execute(local_device_lists.update().where(*mine).values(**values)).rowcount:
        tx.execute(local_device_lists.insert().values(tenant=tenant, gateway=name, **values))


def _given(tx: sa.Connection, tenant: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the targets of the registry's devices among some names."""
    found: dict[str, list[str]] = {}
    if names:
        columns = device_targets.c
        mine = (columns.tenant == tenant, columns.device.in_(names), columns.present)
        for device, target in tx.execute(sa.select(columns.device, columns.target).where(*mine)):
            found.setdefault(device, []).append(target)
    return found


def _concerns(targets: Sequence[str], gateway: str, labels: dict[str, str]) -> bool:
    return any(
        target == f"{GATEWAY}{gateway}"
        or (target.startswith(SELECTOR) and parse_selector(target.removeprefix(SELECTOR)).matches(labels))
        for target in targets
    )
