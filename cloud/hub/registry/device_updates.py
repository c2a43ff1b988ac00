"""Reports of devices about artefacts in the registry: the newest one of each device and version.

Reports of one stream (an address of a store of a gateway) have sequences, and the higher one is newer. Others are
compared by the time at which their gateway received them; of those, a report on the way does not replace a final one. A
row remembers the sequences of the last streams, so a report that is repeated changes nothing, whatever the clocks say.
It keeps the last failure and the last report on the way, so that no other report hides them from a campaign. The clock
of a gateway may be behind, so a failure that seems older than the newest report of another gateway is kept too. Times
are UTC microseconds since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.artefacts.report import UpdateState
from cloud.hub.limits import FAILURE_EARLY_S_MAX, SUCCESS_EARLY_S_MAX, TENANT_DEVICE_UPDATES_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import PARAMETERS_MAX, artefacts, device_updates, devices

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

    seen: str | None = None
    """Highest sequences of the last streams, as JSON; None in reports that were just read."""
    failure: str | None = None
    """Name of the last failure, which may seem older than the report; None without one."""
    failure_reason: str | None = None
    failure_at: int | None = None
    """Time at which the gateway received the failure."""
    progress: str | None = None
    """Name of the last report on the way, which a final one may hide; None without one."""
    progress_at: int | None = None
    """Time at which the gateway received it."""

    def as_newest(self) -> DeviceUpdate:
        """Return the row of a report that is the newest: it may be the last failure, or the last one on the way."""
        name = report_name(self.stream, self.sequence)
        if self.state == UpdateState.ROLLED_BACK.value:
            return self._replace(failure=name, failure_reason=self.reason, failure_at=self.reported_at)
        if not UpdateState(self.state).final:
            return self._replace(progress=name, progress_at=self.reported_at)
        return self

    @property
    def sequences(self) -> dict[str, int]:
        """Highest sequence of each stream that the row remembers, the latest stream last."""
        found: dict[str, int] = {} if self.seen is None else msgspec.json.decode(self.seen)
        found[self.stream] = max(self.sequence, found.pop(self.stream, self.sequence))
        return found

    def after(self, report: DeviceUpdate) -> DeviceUpdate:
        """Return the row after another report about the same device and version; the row itself if it is known."""
        known = self.sequences
        if report.sequence <= known.get(report.stream, -1):
            return self
        if self._is_older_than(report):
            newest = report._replace(**{name: getattr(self, name) for name in _PAST}).as_newest()
        elif report.state == UpdateState.ROLLED_BACK.value:
            newest = self._with_failure(report)
        elif UpdateState(report.state).final:
            newest = self
        else:
            name = report_name(report.stream, report.sequence)
            newest = self._replace(progress=name, progress_at=report.reported_at)
        known.pop(report.stream, None)
        kept = dict([*known.items(), (report.stream, report.sequence)][-STREAMS_REMEMBERED:])
        return newest._replace(seen=msgspec.json.encode(kept).decode())

    def _with_failure(self, report: DeviceUpdate) -> DeviceUpdate:
        """Return the row with a failure that is not the newest report, unless it is older than the last failure by more
        than clocks differ."""
        if self.failure_at is not None and report.reported_at < self.failure_at - FAILURE_EARLY_S_MAX * 1_000_000:
            return self
        return self._replace(
            failure=report_name(report.stream, report.sequence),
            failure_reason=report.reason,
            failure_at=report.reported_at,
        )

    def _is_older_than(self, other: DeviceUpdate) -> bool:
        if self.stream == other.stream:
            return other.sequence > self.sequence
        mine, theirs = UpdateState(self.state).final, UpdateState(other.state).final
        if mine != theirs:  # clocks of gateways differ, and a final report is the last one about a version
            return theirs
        return other.reported_at > self.reported_at


_PAST: Final = ("failure", "failure_reason", "failure_at", "progress", "progress_at")


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
"""Artefact, version and device: the order of pages. Or tenant, artefact and version."""
RECORDED_AT_ONCE: Final = 1_000
"""Reports of one transaction: 100 ms of the registry on SQLite."""
STREAMS_REMEMBERED: Final = 4
"""Streams of which a row remembers the highest sequence: those of the last gateways of a device, at 50 bytes each."""
_REGISTERED_AT_ONCE: Final = 100
"""Devices of one look for their registration: a condition of two parameters for each, twice."""
FULL_S: Final = 60.0
"""Time after which the rows of a tenant with too many are counted again: 4 000 000 take a second."""
_ROW: Final = [device_updates.c[name] for name in DeviceUpdate._fields]
_ORDER: Final = (device_updates.c.name, device_updates.c.version, device_updates.c.device)


class DeviceUpdates:
    """Reports in the registry, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[str, int] = {}
        """Rows by tenant, as far as this process knows: others add some too."""
        self._full_until: dict[str, float] = {}
        """Monotonic times until which tenants get no new rows."""

    @property
    def full(self) -> list[str]:
        """Tenants with as many rows as they may have."""
        now = time.monotonic()
        return [tenant for tenant, until in self._full_until.items() if now < until]

    def record(self, reports: Sequence[DeviceUpdate]) -> int:
        """Record reports, a transaction for each `RECORDED_AT_ONCE`; return how many changed a row. Those about
        artefacts that the hub does not have, and those of new devices beyond `TENANT_DEVICE_UPDATES_MAX`, are left to
        the lake."""
        ordered = sorted(reports, key=lambda each: each[:4])
        parts = (ordered[start : start + RECORDED_AT_ONCE] for start in range(0, len(ordered), RECORDED_AT_ONCE))
        return sum([self._record_part(part) for part in parts])

    def _record_part(self, reports: Sequence[DeviceUpdate]) -> int:
        groups: dict[UpdateKey, list[DeviceUpdate]] = {}
        for each in reports:
            groups.setdefault((each.tenant, each.name, each.version), []).append(each)
        counts: dict[str, int] = {}

        def work(tx: sa.Connection) -> int:
            counts.clear()
            known = _known_artefacts(tx, groups)
            return sum([self._record_group(tx, *key, some, counts) for key, some in groups.items() if key in known])

        changed = self._database.transaction(work)
        self._counts.update(counts)
        until = time.monotonic() + FULL_S
        self._full_until.update((tenant, until) for tenant, n in counts.items() if n >= TENANT_DEVICE_UPDATES_MAX)
        return changed

    def page(self, wanted: UpdateFilter, after: UpdateKey | None, limit: int) -> list[DeviceUpdate]:
        """Return reports by artefact, version and device, behind `after`."""
        query = sa.select(*_ROW).where(*_conditions(wanted))
        if after is not None:
            query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*map(_typed, _ORDER, after)))
        query = query.order_by(*_ORDER).limit(limit)
        return self._database.transaction(lambda tx: [DeviceUpdate(*row) for row in tx.execute(query)])

    def counts(self, wanted: UpdateFilter) -> list[UpdateCount]:
        """Return the number of devices by artefact, version and state."""
        columns = (device_updates.c.name, device_updates.c.version, device_updates.c.state)
        query = sa.select(*columns, sa.func.count()).where(*_conditions(wanted)).group_by(*columns).order_by(*columns)
        return self._database.transaction(lambda tx: [UpdateCount(*row) for row in tx.execute(query)])

    # --- inside -----------------------------------------------------------------------------------------------------

    def _record_group(
        self,
        tx: sa.Connection,
        tenant: str,
        name: str,
        version: str,
        reports: Sequence[DeviceUpdate],
        counts: dict[str, int],
    ) -> int:
        """Record reports about one version of an artefact. `counts`: rows by tenant after the transaction."""
        there = {each.device: each for each in _find(tx, tenant, name, version, [each.device for each in reports])}
        after = dict(there)
        for each in reports:
            before = after.get(each.device)
            after[each.device] = each.as_newest() if before is None else before.after(each)
        new = [row for device, row in after.items() if device not in there]
        former = _devices_before(tx, new)
        added = self._fitting(tx, tenant, [row for row in new if row.device not in former], counts)
        if added:
            tx.execute(device_updates.insert(), [each._asdict() for each in added])
        changed = [row for device, row in after.items() if device in there and row is not there[device]]
        for each in changed:
            mine = [device_updates.c[column] == getattr(each, column) for column in DeviceUpdate._fields[:4]]
            values: dict[str, Any] = {column: getattr(each, column) for column in DeviceUpdate._fields[4:]}
            tx.execute(device_updates.update().where(*mine).values(values))
        return len(added) + sum(row[4:11] != there[row.device][4:11] for row in changed)

    def _fitting(
        self, tx: sa.Connection, tenant: str, added: list[DeviceUpdate], counts: dict[str, int]
    ) -> list[DeviceUpdate]:
        """Return the new rows for which there is room."""
        if not added or tenant in self.full:
            return []
        count = counts.get(tenant, self._counts.get(tenant))
        if count is None or count + len(added) > TENANT_DEVICE_UPDATES_MAX:
            counting = sa.select(sa.func.count()).select_from(device_updates).where(device_updates.c.tenant == tenant)
            count = int(tx.execute(counting).scalar_one())
        kept = added[: max(0, TENANT_DEVICE_UPDATES_MAX - count)]
        counts[tenant] = count + len(kept)
        if len(kept) < len(added):
            counts[tenant] = TENANT_DEVICE_UPDATES_MAX
        return kept


def _devices_before(tx: sa.Connection, reports: Sequence[DeviceUpdate]) -> set[str]:
    """Return the devices that were registered long after their report, which is that of a removed device of the name.

    Clocks of gateways may be behind by `SUCCESS_EARLY_S_MAX`.
    """
    found: set[str] = set()
    for start in range(0, len(reports), _REGISTERED_AT_ONCE):
        part = {(row.tenant, row.device): row for row in reports[start : start + _REGISTERED_AT_ONCE]}
        for row in [*part.values()]:
            device, _, devices_of = row.device.rpartition("@")
            if device:
                part[devices_of, device] = row
        mine = [(devices.c.tenant == tenant) & (devices.c.device == device) for tenant, device in part]
        query = sa.select(devices.c.tenant, devices.c.device, devices.c.created_at).where(sa.or_(*mine))
        for tenant, device, created_at in tx.execute(query):
            row = part[tenant, device]
            if row.reported_at < created_at - SUCCESS_EARLY_S_MAX * 1_000_000:
                found.add(row.device)
    return found


def device_name(tenant: str, devices_of: str, device: str) -> str:
    """Return the name of a device in the reports of a hub's tenant. `devices_of`: its tenant in the device registry."""
    return device if devices_of == tenant else f"{device}@{devices_of}"


def report_name(stream: str, sequence: int) -> str:
    """Return the name of a report. No other report has it."""
    return f"{stream}:{sequence}"


def forget_device_updates(tx: sa.Connection, tenant: str, devices: Sequence[str]) -> None:
    """Delete all reports of some devices, by their names in reports: they prove nothing about later devices of these
    names."""
    mine = (device_updates.c.tenant == tenant, device_updates.c.device.in_(devices))
    tx.execute(device_updates.delete().where(*mine))


def forget_updates(tx: sa.Connection, tenant: str, name: str, version: str) -> int:
    """Delete some reports about a version; return their number."""
    mine = (device_updates.c.tenant == tenant, device_updates.c.name == name, device_updates.c.version == version)
    names = list(tx.execute(sa.select(device_updates.c.device).where(*mine).limit(_NAMES_AT_ONCE)).scalars())
    if names:
        tx.execute(device_updates.delete().where(*mine, device_updates.c.device.in_(names)))
    return len(names)


def _typed(column: sa.Column[Any], value: str) -> sa.BindParameter[Any]:
    """Return a value in the encoding of its column."""
    return sa.literal(value, column.type)


def _known_artefacts(tx: sa.Connection, keys: Iterable[UpdateKey]) -> set[UpdateKey]:
    """Return which of these versions the hub has, by tenant, name and version."""
    names: dict[str, set[str]] = {}
    for tenant, name, _ in keys:
        names.setdefault(tenant, set()).add(name)
    found: set[UpdateKey] = set()
    for tenant, some in names.items():
        ordered = sorted(some)
        for start in range(0, len(ordered), _NAMES_AT_ONCE):
            part = artefacts.c.name.in_(ordered[start : start + _NAMES_AT_ONCE])
            query = sa.select(artefacts.c.tenant, artefacts.c.name, artefacts.c.version)
            there = artefacts.c.removing.is_(False)  # its reports are being deleted
            rows = tx.execute(query.where(artefacts.c.tenant == tenant, part, there))
            found.update((row[0], row[1], row[2]) for row in rows)
    return found


def _conditions(wanted: UpdateFilter) -> list[sa.ColumnElement[bool]]:
    return [device_updates.c[name] == value for name, value in wanted._asdict().items() if value is not None]


def _find(tx: sa.Connection, tenant: str, name: str, version: str, devices: Sequence[str]) -> Iterator[DeviceUpdate]:
    mine = (device_updates.c.tenant == tenant, device_updates.c.name == name, device_updates.c.version == version)
    for start in range(0, len(devices), _NAMES_AT_ONCE):
        part = devices[start : start + _NAMES_AT_ONCE]
        query = sa.select(*_ROW).where(*mine, device_updates.c.device.in_(part))
        yield from (DeviceUpdate(*row) for row in tx.execute(query))
