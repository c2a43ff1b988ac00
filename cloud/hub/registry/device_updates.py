"""Reports of devices about artefacts in the registry: the newest one of each device and version.

Reports of one stream (an address of a store of a gateway) have sequences, and the higher one is newer. Others are
compared by the time at which their gateway received them. So a report that is repeated, or that a backlog brings late,
changes nothing. Times are UTC microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import TENANT_DEVICE_UPDATES_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import PARAMETERS_MAX, artefacts, device_updates

_NAMES_AT_ONCE: Final = PARAMETERS_MAX - 10


class DeviceUpdate(NamedTuple):
    """Newest report of a device about one version of an artefact."""

    tenant: str
    name: str
    """Name of the artefact."""
    version: str
    device: str
    state: str
    """A `bridge.artefacts.report.UpdateState`."""
    reason: str
    gateway: str
    """Gateway at which the device reported."""
    stream: str
    """Digest of the gateway, its store and the address, in which `sequence` numbers the reports."""
    sequence: int
    reported_at: int
    """Time at which the gateway received the report."""
    changed_at: int
    """Time at which the hub took it."""

    def is_newer(self, other: DeviceUpdate) -> bool:
        """Return whether this report is newer than another one of the same device and version."""
        if self.stream == other.stream:
            return self.sequence > other.sequence
        return self.reported_at > other.reported_at


class UpdateFilter(NamedTuple):
    """Reports to return; None for all."""

    tenant: str
    name: str | None = None
    version: str | None = None
    device: str | None = None
    state: str | None = None


class UpdateCount(NamedTuple):
    """Number of devices with one state of one version."""

    name: str
    version: str
    state: str
    devices: int


UpdateKey = tuple[str, str, str]
"""Artefact, version and device: the order of pages."""
_ROW: Final = [device_updates.c[name] for name in DeviceUpdate._fields]
_ORDER: Final = (device_updates.c.name, device_updates.c.version, device_updates.c.device)


class DeviceUpdates:
    """Reports in the registry, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[str, int] = {}
        """Rows by tenant, as far as this process knows: others add some too."""

    def record(self, reports: Iterable[DeviceUpdate]) -> int:
        """Record reports; return how many changed a row. Those about artefacts that the hub does not have, and those of
        new devices beyond `TENANT_DEVICE_UPDATES_MAX`, are left to the lake."""
        groups: dict[UpdateKey, list[DeviceUpdate]] = {}
        for each in sorted(reports, key=lambda one: one[:4]):
            groups.setdefault((each.tenant, each.name, each.version), []).append(each)

        def work(tx: sa.Connection) -> int:
            return sum([self._record_group(tx, *key, some) for key, some in groups.items()])

        return self._database.transaction(work)

    def page(self, wanted: UpdateFilter, after: UpdateKey | None, limit: int) -> list[DeviceUpdate]:
        """Return reports by artefact, version and device, behind `after`."""
        query = sa.select(*_ROW).where(*_conditions(wanted))
        if after is not None:
            query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*after))
        query = query.order_by(*_ORDER).limit(limit)
        return self._database.transaction(lambda tx: [DeviceUpdate(*row) for row in tx.execute(query)])

    def counts(self, wanted: UpdateFilter) -> list[UpdateCount]:
        """Return the number of devices by artefact, version and state."""
        columns = (device_updates.c.name, device_updates.c.version, device_updates.c.state)
        query = sa.select(*columns, sa.func.count()).where(*_conditions(wanted)).group_by(*columns).order_by(*columns)
        return self._database.transaction(lambda tx: [UpdateCount(*row) for row in tx.execute(query)])

    # --- inside -----------------------------------------------------------------------------------------------------

    def _record_group(
        self, tx: sa.Connection, tenant: str, name: str, version: str, reports: Sequence[DeviceUpdate]
    ) -> int:
        """Record reports about one version of an artefact."""
        known = (artefacts.c.tenant == tenant, artefacts.c.name == name, artefacts.c.version == version)
        if tx.execute(sa.select(artefacts.c.name).where(*known)).first() is None:
            return 0
        newest: dict[str, DeviceUpdate] = {}
        for each in reports:
            before = newest.get(each.device)
            if before is None or each.is_newer(before):
                newest[each.device] = each
        there = {each.device: each for each in _find(tx, tenant, name, version, list(newest))}
        changed = [each for each in newest.values() if each.device in there and each.is_newer(there[each.device])]
        added = self._fitting(tx, tenant, [each for each in newest.values() if each.device not in there])
        if added:
            tx.execute(device_updates.insert(), [each._asdict() for each in added])
        for each in changed:
            mine = [device_updates.c[column] == getattr(each, column) for column in DeviceUpdate._fields[:4]]
            values: dict[str, Any] = {column: getattr(each, column) for column in DeviceUpdate._fields[4:]}
            tx.execute(device_updates.update().where(*mine).values(values))
        return len(added) + len(changed)

    def _fitting(self, tx: sa.Connection, tenant: str, added: list[DeviceUpdate]) -> list[DeviceUpdate]:
        """Return the new rows for which there is room."""
        if not added:
            return added
        count = self._counts.get(tenant)
        if count is None or count + len(added) > TENANT_DEVICE_UPDATES_MAX:
            counting = sa.select(sa.func.count()).select_from(device_updates).where(device_updates.c.tenant == tenant)
            count = tx.execute(counting).scalar_one()
        kept = added[: max(0, TENANT_DEVICE_UPDATES_MAX - count)]
        self._counts[tenant] = count + len(kept)
        return kept


def _conditions(wanted: UpdateFilter) -> list[sa.ColumnElement[bool]]:
    return [device_updates.c[name] == value for name, value in wanted._asdict().items() if value is not None]


def _find(tx: sa.Connection, tenant: str, name: str, version: str, devices: Sequence[str]) -> Iterator[DeviceUpdate]:
    mine = (device_updates.c.tenant == tenant, device_updates.c.name == name, device_updates.c.version == version)
    for start in range(0, len(devices), _NAMES_AT_ONCE):
        part = devices[start : start + _NAMES_AT_ONCE]
        query = sa.select(*_ROW).where(*mine, device_updates.c.device.in_(part))
        yield from (DeviceUpdate(*row) for row in tx.execute(query))
