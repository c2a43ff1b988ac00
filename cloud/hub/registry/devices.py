"""Devices of tenants in the registry, with their links and credentials.

For a thread of its own. A device has a revision for its registration and one for its credentials; both are entity tags
over HTTP. Its document is JSON; `device_links` repeats the lists of it that searches need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.registry.command_moves import follow_device
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_offers import forget_members
from cloud.hub.registry.device_search import SearchedTable, SearchQuery, conditions, order_by
from cloud.hub.registry.device_targets import mark_changed, mark_removed, put_targets, targets_of
from cloud.hub.registry.device_tenants import (
    Check,
    DeviceTenantRow,
    UnknownDeviceTenant,
    add_tenant,
    raise_revision,
    tenant_row,
)
from cloud.hub.registry.device_updates import device_name, forget_device_updates
from cloud.hub.registry.events import utc_us
from cloud.hub.registry.schema import PARAMETERS_MAX, device_credentials, device_links, devices

REMOVED_AT_ONCE: Final = min(500, PARAMETERS_MAX)
"""Devices removed in one transaction."""

_TABLE: Final = SearchedTable(
    devices.c.device,
    devices.c.document,
    {
        ("id",): devices.c.device,
        ("status", "created"): devices.c.created_at,
        ("status", "updated"): devices.c.updated_at,
        ("status", "last-user"): devices.c.updated_by,
    },
    frozenset({("status", "created"), ("status", "updated")}),
)


class LinkKind(StrEnum):
    """Kind of a link of a device."""

    VIA = "via"
    """Device that acts for it."""
    VIA_GROUP = "viaGroup"
    """Group of devices that act for it."""
    MEMBER_OF = "memberOf"
    """Group of acting devices that it belongs to."""


class DeviceLink(NamedTuple):
    """Link of a device to another device, or to a group."""

    kind: LinkKind
    name: str


@hides("document")
class DeviceRow(NamedTuple):
    """Device. Times are UTC microseconds."""

    tenant: str
    device: str
    document: str
    revision: int
    credentials_revision: int
    created_at: int
    updated_at: int
    updated_by: str


@hides("document")
class NewDeviceRow(NamedTuple):
    """State of a device that a request wants."""

    tenant: str
    device: str
    document: str
    links: Sequence[DeviceLink]
    at_us: int
    by: str


@hides("document")
class CredentialRow(NamedTuple):
    """Credentials of a device with one authentication identifier."""

    type: str
    auth_id: str
    document: str


class FoundDevices(NamedTuple):
    """Page of devices."""

    rows: list[DeviceRow]
    total: int


class FoundCredentials(NamedTuple):
    """Credentials of a device."""

    rows: list[CredentialRow]
    revision: int


class DeviceExists(Exception):
    """The tenant has a device with this id."""


class UnknownDevice(Exception):
    """The tenant has no such device."""


class CredentialsTaken(Exception):
    """Another device of the tenant has credentials with this type and identifier."""


@hides("document")
class TenantLimits(NamedTuple):
    """Conditions of the tenant for a new device."""

    owner: str | None
    """Owner of the tenant if it is added with its first device; None: it must exist."""
    devices_max: Callable[[DeviceTenantRow], int]
    """Returns the number of devices that a tenant may have. Raises to prevent the change."""
    document: str = "{}"
    """Document of a tenant that is added."""


_ROW = [devices.c[name] for name in DeviceRow._fields]
_CREDENTIALS = [device_credentials.c[name] for name in CredentialRow._fields]


class DevicesFull(Exception):
    """The tenant has as many devices as it may have."""


class RegisteredDevices:
    """Devices, for the thread that opened the database. Every method is one transaction; raises `RegistryError`, and
    `UnknownDeviceTenant` or `UnknownDevice`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, tenant: str, device: str) -> DeviceRow:
        """Return a device."""
        return self._database.transaction(lambda tx: _device_row(tx, tenant, device))

    def search(self, tenant: str, query: SearchQuery) -> FoundDevices:
        """Return a page of the devices of a tenant. Raises `UnsearchableField`."""

        def work(tx: sa.Connection) -> FoundDevices:
            known = tenant_row(tx, tenant)
            if known is None:
                raise UnknownDeviceTenant(tenant)
            which = conditions(tx.dialect.name, _TABLE, query)
            if query.gateways is not None:
                acts = _acts_for_others()
                which.append(acts if query.gateways else ~acts)
            total = known.devices
            if which:
                counting = sa.select(sa.func.count()).select_from(devices).where(devices.c.tenant == tenant, *which)
                total = int(tx.execute(counting).scalar_one())
            wanted = sa.select(*_ROW).where(devices.c.tenant == tenant, *which)
            if query.page.after:
                wanted = wanted.where(devices.c.device > query.page.after)
            wanted = wanted.order_by(*order_by(tx.dialect.name, _TABLE, query.orders))
            rows = tx.execute(wanted.limit(query.page.limit).offset(query.page.offset)).all()
            return FoundDevices([DeviceRow(*row) for row in rows], total)

        return self._database.transaction(work)

    def add(self, new: NewDeviceRow, limits: TenantLimits) -> int:
        """Add a device without credentials; return its revision. Raises `DeviceExists`, `DevicesFull`,
        `SelectorsFull`."""

        def work(tx: sa.Connection) -> int:
            known = tenant_row(tx, new.tenant)
            if known is None and limits.owner is not None:
                add_tenant(tx, new.tenant, limits.owner, limits.document, new.at_us, new.by)
                known = tenant_row(tx, new.tenant)
            if known is None:
                raise UnknownDeviceTenant(new.tenant)
            return add_device(tx, known, new, limits)

        return self._database.transaction(work)

    def replace(self, new: NewDeviceRow, check: Check) -> int:
        """Replace the registration of a device, without its credentials; return the new revision. Raises
        `SelectorsFull`, and what `check` raises."""

        def work(tx: sa.Connection) -> int:
            known, there = _tenant_and_device(tx, new.tenant, new.device)
            check(there.revision)
            revision = raise_revision(tx, known)
            changed = {"document": new.document, "updated_at": new.at_us, "updated_by": new.by}
            tx.execute(devices.update().where(*_is(new.tenant, new.device)).values(**changed, revision=revision))
            tx.execute(device_links.delete().where(*_of(device_links, new.tenant, [new.device])))
            _add_links(tx, new)
            put_targets(tx, new.tenant, new.device, revision, targets_of(new.document))
            follow_device(tx, known.owner, new.tenant, new.device)
            return revision

        return self._database.transaction(work)

    def remove(self, tenant: str, device: str, check: Check) -> None:
        """Remove a device with its credentials. Raises what `check` raises."""

        def work(tx: sa.Connection) -> None:
            known, there = _tenant_and_device(tx, tenant, device)
            check(there.revision)
            _remove(tx, known, [device])

        self._database.transaction(work)

    def remove_some(self, tenant: str) -> int:
        """Remove some devices of a tenant, `REMOVED_AT_ONCE` at most; return their number."""

        def work(tx: sa.Connection) -> int:
            known = tenant_row(tx, tenant)
            if known is None:
                raise UnknownDeviceTenant(tenant)
            wanted = sa.select(devices.c.device).where(devices.c.tenant == tenant).order_by(devices.c.device)
            names = list(tx.execute(wanted.limit(REMOVED_AT_ONCE)).scalars())
            if names:
                _remove(tx, known, names)
            return len(names)

        return self._database.transaction(work)

    def credentials(self, tenant: str, device: str) -> FoundCredentials:
        """Return the credentials of a device, by type and identifier."""

        def work(tx: sa.Connection) -> FoundCredentials:
            there = _device_row(tx, tenant, device)
            return FoundCredentials(_credentials_of(tx, tenant, device), there.credentials_revision)

        return self._database.transaction(work)

    def set_credentials(
        self,
        tenant: str,
        device: str,
        change: Callable[[DeviceTenantRow, list[CredentialRow]], Iterable[CredentialRow]],
        check: Check,
    ) -> int:
        """Replace the credentials of a device by those that `change` returns; return the new revision. `change` gets
        the present ones, and may run several times. Raises `CredentialsTaken`, and what `check` and `change` raise."""

        def work(tx: sa.Connection) -> int:
            known, there = _tenant_and_device(tx, tenant, device)
            check(there.credentials_revision)
            made = list(change(known, _credentials_of(tx, tenant, device)))
            revision = raise_revision(tx, known)
            tx.execute(device_credentials.delete().where(*_of(device_credentials, tenant, [device])))
            for each in made:
                mine = (
                    device_credentials.c.tenant == tenant,
                    device_credentials.c.type == each.type,
                    device_credentials.c.auth_id == each.auth_id,
                )
                if tx.execute(sa.select(device_credentials.c.device).where(*mine)).first() is not None:
                    raise CredentialsTaken(f"another device of the tenant has {each.type} {each.auth_id}")
                tx.execute(device_credentials.insert().values(tenant=tenant, device=device, **each._asdict()))
            tx.execute(devices.update().where(*_is(tenant, device)).values(credentials_revision=revision))
            mark_changed(tx, tenant, device, revision)
            return revision

        return self._database.transaction(work)


def add_device(tx: sa.Connection, known: DeviceTenantRow, new: NewDeviceRow, limits: TenantLimits) -> int:
    """Add a device without credentials; return its revision. Raises `DeviceExists`, `DevicesFull`, `SelectorsFull`."""
    if find_device(tx, new.tenant, new.device) is not None:
        raise DeviceExists(new.device)
    most = limits.devices_max(known)
    if known.devices >= most:
        raise DevicesFull(f"tenant {new.tenant} has {most} devices, the most that it may have")
    revision = raise_revision(tx, known, 1)
    row = DeviceRow(new.tenant, new.device, new.document, revision, revision, new.at_us, new.at_us, new.by)
    tx.execute(devices.insert().values(**row._asdict()))
    # a report of a former device of this name may have come after its removal
    forget_device_updates(tx, known.owner, [device_name(known.owner, new.tenant, new.device)])
    _add_links(tx, new)
    put_targets(tx, new.tenant, new.device, revision, targets_of(new.document))
    follow_device(tx, known.owner, new.tenant, new.device)
    return revision


def find_device(tx: sa.Connection, tenant: str, device: str) -> DeviceRow | None:
    """Return a device; None if there is none."""
    row = tx.execute(sa.select(*_ROW).where(*_is(tenant, device))).first()
    return None if row is None else DeviceRow(*row)


def _device_row(tx: sa.Connection, tenant: str, device: str) -> DeviceRow:
    row = find_device(tx, tenant, device)
    if row is None:
        raise UnknownDevice(device)
    return row


def _tenant_and_device(tx: sa.Connection, tenant: str, device: str) -> tuple[DeviceTenantRow, DeviceRow]:
    known = tenant_row(tx, tenant)
    if known is None:
        raise UnknownDeviceTenant(tenant)
    return known, _device_row(tx, tenant, device)


def _credentials_of(tx: sa.Connection, tenant: str, device: str) -> list[CredentialRow]:
    wanted = sa.select(*_CREDENTIALS).where(*_of(device_credentials, tenant, [device]))
    ordered = wanted.order_by(device_credentials.c.type, device_credentials.c.auth_id)
    return [CredentialRow(*row) for row in tx.execute(ordered)]


def _remove(tx: sa.Connection, known: DeviceTenantRow, names: Sequence[str]) -> None:
    for table in (devices, device_links, device_credentials):
        tx.execute(table.delete().where(*_of(table, known.tenant, names)))
    mark_removed(tx, known.tenant, names, raise_revision(tx, known, -len(names)))
    forget_members(tx, known.tenant, names, utc_us())
    forget_device_updates(tx, known.owner, [device_name(known.owner, known.tenant, each) for each in names])


def _add_links(tx: sa.Connection, new: NewDeviceRow) -> None:
    links = dict.fromkeys(new.links)
    if links:
        rows = [
            {"tenant": new.tenant, "device": new.device, "kind": link.kind.value, "name": link.name} for link in links
        ]
        tx.execute(device_links.insert(), rows)


def _is(tenant: str, device: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return devices.c.tenant == tenant, devices.c.device == device


def _of(table: sa.Table, tenant: str, names: Sequence[str]) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return table.c.tenant == tenant, table.c.device.in_(names)


def _acts_for_others() -> sa.ColumnElement[bool]:
    """Return the condition of a device that acts for others: some device names it in `via`, or it is in a group."""
    named = sa.exists().where(
        device_links.c.tenant == devices.c.tenant,
        device_links.c.kind == LinkKind.VIA.value,
        device_links.c.name == devices.c.device,
    )
    grouped = sa.exists().where(
        device_links.c.tenant == devices.c.tenant,
        device_links.c.device == devices.c.device,
        device_links.c.kind == LinkKind.MEMBER_OF.value,
    )
    return named | grouped
