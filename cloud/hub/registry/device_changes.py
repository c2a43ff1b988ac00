"""Changes of devices that concern one gateway, read from the registry page by page.

The position of a gateway is a `DeviceCursor`: for each tenant of devices that its own tenant owns, how far it is. A
gateway without a position in a tenant, or with one that the registry cannot continue, gets a snapshot: pages that
replace a range of ids each. After it come the changes since its beginning. Every page has the present state of its
devices, so a page that is repeated, or a change that comes twice, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.device_pages import OfferedUpdate
from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.labels import LabelSelector, parse_selector
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_offers import offers_of
from cloud.hub.registry.device_targets import GATEWAY, SELECTOR, SELECTORS_MAX, selectors_of_owner
from cloud.hub.registry.devices import CredentialRow
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.schema import (
    device_credentials,
    device_selectors,
    device_targets,
    device_tenants,
    devices,
    trust_anchors,
)

CURSOR_FORM: Final = 1
"""Form of what a cursor stands for: since form 1 pages have subjects of certificates, and authorities."""
CERTIFICATE_TYPE: Final = "x509-cert"
"""Type of the credentials with the subject of certificates."""
_PROVISIONS: Final = '"auto-provisioning-enabled":true'
"""Member in the stored document of a tenant that registers devices by their certificates."""
ROWS_MAX: Final = 100
"""Devices of one page before its bytes are counted: 6 MiB if all have the most credentials."""
QUERIES_MAX: Final = 400
"""Queries in one statement; SQLite takes 500."""


class TenantPosition(msgspec.Struct, frozen=True, array_like=True):
    """Position of a gateway in a tenant of devices."""

    revision: int
    """All changes up to this one are known, or those of a snapshot's beginning."""
    snapshot_after: str | None = None
    """Last id of an unfinished snapshot; empty at its beginning."""
    changed_after: str | None = None
    """Last id among the changes of `revision`; None: all of them."""


class DeviceCursor(msgspec.Struct, frozen=True):
    """Position of a gateway in all its tenants of devices."""

    registry: str = ""
    """Id of the registry that made it."""
    labels: dict[str, str] = {}
    """Labels of the gateway that decided about selectors."""
    tenants: dict[str, TenantPosition] = {}
    form: int = 0
    """`CURSOR_FORM` of the program that made it."""

    def at(self, tenant: str, position: TenantPosition | None) -> DeviceCursor:
        """Return the cursor with another position in a tenant; None: without it."""
        kept = {name: each for name, each in self.tenants.items() if name != tenant}
        tenants = kept if position is None else {**kept, tenant: position}
        return msgspec.structs.replace(self, tenants=tenants)

    def restarted(self, registry: str) -> DeviceCursor:
        """Return the cursor of a gateway that gets all its devices again."""
        return DeviceCursor(registry, {}, dict.fromkeys(self.tenants, TenantPosition(0)), CURSOR_FORM)


@hides("document", "credentials")
class DeviceState(NamedTuple):
    """Present state of a device that a page is about."""

    device: str
    document: str | None
    """Registration; None: the gateway must not have the device."""
    credentials: Sequence[CredentialRow]
    position: TenantPosition
    """Position of a gateway that has everything up to this device."""
    offers: Sequence[OfferedUpdate] = ()
    """Versions of artefacts that campaigns offer it."""


@hides("document", "states")
class TenantChanges(NamedTuple):
    """Next changes of one tenant for a gateway."""

    tenant: str
    document: str | None
    """Document of the tenant; None: the gateway must not have its devices."""
    after: str | None
    """Begin of the range of ids that the states replace, exclusive; None: they replace single devices."""
    states: Sequence[DeviceState]
    end: TenantPosition | None
    """Position after all states; None: the tenant is gone."""
    complete: bool
    """True if the range reaches to the last id."""
    cursor: DeviceCursor
    """Cursor before these changes."""
    described: bool = True
    """The gateway may not know the document."""


class GatewayLook(NamedTuple):
    """Outcome of a look, without the changes."""

    has_changes: bool
    cursor: DeviceCursor
    """Cursor after changes that do not concern the gateway."""


class GatewayRead(NamedTuple):
    """Outcome of a look for changes."""

    changes: TenantChanges | None
    """None: there are none."""
    cursor: DeviceCursor
    """Cursor after changes that do not concern the gateway."""


@hides("document")
class _Tenant(NamedTuple):
    tenant: str
    document: str
    revision: int
    last_revision: int
    created_at: int
    dropped_revision: int | None

    @property
    def provisions(self) -> bool:
        """True if gateways may register devices of the tenant: then it concerns each one of its owner."""
        return _PROVISIONS in self.document

    def continues(self, position: TenantPosition) -> bool:
        """Return whether the registry has all changes after a position."""
        oldest = self.dropped_revision or 0
        if position.changed_after is not None and position.revision == oldest:
            return False  # some tombstones of this revision are after the id
        return max(self.created_at, oldest) <= position.revision <= self.last_revision


class _Change(NamedTuple):
    revision: int
    device: str


_TENANT: Final = [device_tenants.c[name] for name in _Tenant._fields]


class DeviceChanges:
    """Changes for gateways, for the thread that opened the database. Methods raise `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def revisions(self) -> dict[str, int]:
        """Return for each owner a number that grows with each change of its devices."""
        columns = device_tenants.c
        query = sa.select(columns.owner, sa.func.sum(columns.last_revision)).group_by(columns.owner)
        return self._database.transaction(lambda tx: {owner: int(total) for owner, total in tx.execute(query)})

    def labels(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return labels by owner and gateway, for owners with devices that select gateways by labels."""
        selecting = sa.select(device_selectors.c.tenant)
        query = sa.select(device_tenants.c.owner).where(device_tenants.c.tenant.in_(selecting)).distinct()

        def work(tx: sa.Connection) -> dict[str, dict[str, dict[str, str]]]:
            return {owner: labels_of(tx, owner) for owner in tx.execute(query).scalars().all()}

        return self._database.transaction(work)

    def look(self, gateway: Key, cursor: DeviceCursor) -> GatewayLook:
        """Return whether there are changes for a gateway after its cursor."""

        def work(tx: sa.Connection) -> GatewayLook:
            found = _find(tx, gateway, cursor, 1)
            return GatewayLook(found.subject is not None, found.cursor)

        return self._database.transaction(work)

    def read(self, gateway: Key, cursor: DeviceCursor, rows: int = ROWS_MAX) -> GatewayRead:
        """Return the next changes for a gateway after its cursor."""

        def work(tx: sa.Connection) -> GatewayRead:
            found = _find(tx, gateway, cursor, rows)
            return GatewayRead(_read(tx, found, rows), found.cursor)

        return self._database.transaction(work)


class _Subject(NamedTuple):
    """Tenant with changes for a gateway."""

    tenant: _Tenant
    targets: Sequence[str]
    """Targets that the gateway belongs to."""
    position: TenantPosition
    changed: Sequence[_Change]
    """Next changes in order, one more than a page has; those of a snapshot are not read yet."""


class _FoundChanges(NamedTuple):
    """Next changes for a gateway, before their devices are read."""

    subject: _Subject | str | None
    """A tenant; the name of one that is gone; or None without changes."""
    cursor: DeviceCursor
    """Cursor after changes that do not concern the gateway."""


def _find(tx: sa.Connection, gateway: Key, cursor: DeviceCursor, rows: int) -> _FoundChanges:
    """Find the next changes, with a statement for each changed tenant and four for all."""
    owner, name = gateway
    query = sa.select(*_TENANT).where(device_tenants.c.owner == owner).order_by(device_tenants.c.tenant)
    tenants = {row.tenant: _Tenant(*row) for row in tx.execute(query)}
    for gone in cursor.tenants.keys() - tenants.keys():
        return _FoundChanges(gone, cursor)
    labels = labels_of(tx, owner, (name,)).get(name, {})
    selectors = selectors_of_owner(tx, owner)
    cursor = _relabelled(_reformed(tx, cursor), labels, selectors)
    targets = {each: [f"{GATEWAY}{name}", *_chosen(selectors.get(each, ()), labels)] for each in tenants}
    concerning = _concerning(tx, {each: mine for each, mine in targets.items() if each not in cursor.tenants})
    for each in tenants.values():
        position = cursor.tenants.get(each.tenant)
        if position is None and not each.provisions and each.tenant not in concerning:
            continue
        if position is None or not each.continues(position):
            position = TenantPosition(each.last_revision, snapshot_after="")
        if position.snapshot_after is not None:
            return _FoundChanges(_Subject(each, targets[each.tenant], position, ()), cursor)
        if position.revision == each.last_revision and position.changed_after is None:
            continue
        changed = _changed_devices(tx, each, targets[each.tenant], position, rows)
        if changed or each.revision > position.revision:
            return _FoundChanges(_Subject(each, targets[each.tenant], position, changed), cursor)
        cursor = cursor.at(each.tenant, TenantPosition(each.last_revision))
    return _FoundChanges(None, cursor)


def _read(tx: sa.Connection, found: _FoundChanges, rows: int) -> TenantChanges | None:
    """Return changes with the present states of their devices; None if none were found."""
    if not isinstance(found.subject, _Subject):
        gone = found.subject
        return None if gone is None else TenantChanges(gone, None, "", [], None, True, found.cursor)
    if found.subject.position.snapshot_after is not None:
        return _snapshot(tx, found.subject, found.cursor, rows)
    return _changes(tx, found.subject, found.cursor, rows)


def _reformed(tx: sa.Connection, cursor: DeviceCursor) -> DeviceCursor:
    """Return the cursor in the present form; a tenant begins again if pages of an older form lacked something of it."""
    if cursor.form >= CURSOR_FORM:
        return cursor
    certified = device_credentials.c.type == CERTIFICATE_TYPE
    lacked = _having(
        tx, [sa.select(trust_anchors.c.tenant).where(trust_anchors.c.tenant == of) for of in cursor.tenants]
    )
    of_devices = (
        sa.select(device_credentials.c.tenant).where(device_credentials.c.tenant == of, certified)
        for of in cursor.tenants
    )
    lacked |= _having(tx, list(of_devices))
    kept = {of: TenantPosition(0) if of in lacked else position for of, position in cursor.tenants.items()}
    return msgspec.structs.replace(cursor, tenants=kept, form=CURSOR_FORM)


def _relabelled(
    cursor: DeviceCursor, labels: Mapping[str, str], selectors: Mapping[str, Sequence[str]]
) -> DeviceCursor:
    """Return the cursor with the present labels; a tenant with a selector that decides otherwise begins again."""
    if labels == cursor.labels:
        return cursor
    kept = dict(cursor.tenants)
    for tenant in cursor.tenants:
        chosen = [_parsed(each) for each in selectors.get(tenant, ())]
        if any(each.matches(labels) != each.matches(cursor.labels) for each in chosen):
            kept[tenant] = TenantPosition(0)
    return msgspec.structs.replace(cursor, labels=dict(labels), tenants=kept)


def _chosen(selectors: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """Return the selectors that choose a gateway with these labels."""
    return [each for each in selectors if _parsed(each).matches(labels)]


@lru_cache(maxsize=10 * SELECTORS_MAX)
def _parsed(target: str) -> LabelSelector:
    return parse_selector(target.removeprefix(SELECTOR))


def _concerning(tx: sa.Connection, targets: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the tenants that have a device with one of their targets."""
    columns = device_targets.c
    return _having(
        tx,
        [
            sa.select(columns.tenant).where(columns.tenant == tenant, columns.target == target, columns.present)
            for tenant, mine in targets.items()
            for target in mine
        ],
    )


def _having(tx: sa.Connection, queries: Sequence[sa.Select[tuple[str]]]) -> set[str]:
    """Return the tenants of the first row of each query, if it has one."""
    found = set[str]()
    for start in range(0, len(queries), QUERIES_MAX):
        some = [each.limit(1) for each in queries[start : start + QUERIES_MAX]]
        found.update(tx.execute(_one_after_the_other(some)).scalars())
    return found


def _one_after_the_other(queries: Sequence[sa.Select[Any]]) -> sa.CompoundSelect[Any]:
    """Return one statement with the rows of queries that have an order and a limit of their own."""
    return sa.union_all(*(sa.select(each.subquery()) for each in queries))


def _snapshot(tx: sa.Connection, subject: _Subject, cursor: DeviceCursor, rows: int) -> TenantChanges:
    tenant, position = subject.tenant, subject.position
    after = position.snapshot_after or ""
    columns = device_targets.c
    queries = []
    for target in subject.targets:
        mine = (columns.tenant == tenant.tenant, columns.target == target, columns.device > after, columns.present)
        queries.append(sa.select(columns.device).where(*mine).order_by(columns.device).limit(rows + 1))
    found = set(tx.execute(_one_after_the_other(queries)).scalars())
    names = sorted(found)[:rows]

    def place(device: str) -> TenantPosition:
        return msgspec.structs.replace(position, snapshot_after=device)

    states = _states(tx, tenant.tenant, names, set(names), place)
    complete = len(found) <= rows
    end = TenantPosition(position.revision) if complete else place(names[-1])
    return TenantChanges(tenant.tenant, tenant.document, after, states, end, complete, cursor, not after)


def _changed_devices(
    tx: sa.Connection, tenant: _Tenant, targets: Sequence[str], position: TenantPosition, rows: int
) -> list[_Change]:
    """Return the next changes after a position in order, one more than a page has."""
    columns = device_targets.c
    since = columns.revision > position.revision
    if position.changed_after is not None:
        since |= (columns.revision == position.revision) & (columns.device > position.changed_after)
    queries = []
    for target in targets:
        mine = (columns.tenant == tenant.tenant, columns.target == target, since)
        query = sa.select(columns.revision, columns.device).where(*mine).order_by(columns.revision, columns.device)
        queries.append(query.limit(rows + 1))
    found = {_Change(*row) for row in tx.execute(_one_after_the_other(queries))}
    return sorted(each for each in found if each.revision <= tenant.last_revision)[: rows + 1]


def _changes(tx: sa.Connection, subject: _Subject, cursor: DeviceCursor, rows: int) -> TenantChanges:
    tenant, columns = subject.tenant, device_targets.c
    some = subject.changed[:rows]
    places = {each.device: _place(each) for each in reversed(some)}  # of its first change: later ones may be cut off
    names = list(dict.fromkeys(each.device for each in some))
    mine = (columns.device.in_(names), columns.target.in_(subject.targets))
    among = (columns.tenant == tenant.tenant, *mine, columns.present)
    concerned = set(tx.execute(sa.select(columns.device).where(*among)).scalars()) if names else set[str]()
    states = _states(tx, tenant.tenant, names, concerned, places.__getitem__)
    complete = len(subject.changed) <= rows
    end = TenantPosition(tenant.last_revision) if complete else _place(some[-1])
    described = tenant.revision > subject.position.revision
    return TenantChanges(tenant.tenant, tenant.document, None, states, end, complete, cursor, described)


def _place(change: _Change) -> TenantPosition:
    return TenantPosition(change.revision, changed_after=change.device)


def _states(
    tx: sa.Connection,
    tenant: str,
    names: Sequence[str],
    concerned: set[str],
    place: Callable[[str], TenantPosition],
) -> list[DeviceState]:
    """Return the states of devices in the order of their names given."""
    wanted = sorted(concerned)
    documents: dict[str, str] = {}
    found: dict[str, list[CredentialRow]] = {}
    if wanted:
        registered = (devices.c.tenant == tenant, devices.c.device.in_(wanted))
        rows = tx.execute(sa.select(devices.c.device, devices.c.document).where(*registered))
        documents = {row.device: row.document for row in rows}
        columns = (device_credentials.c[name] for name in ("device", *CredentialRow._fields))
        theirs = (device_credentials.c.tenant == tenant, device_credentials.c.device.in_(wanted))
        query = sa.select(*columns).where(*theirs).order_by(device_credentials.c.type, device_credentials.c.auth_id)
        for device, *rest in tx.execute(query):
            found.setdefault(device, []).append(CredentialRow(*rest))
    offers = offers_of(tx, tenant, wanted) if wanted else {}
    return [
        DeviceState(name, documents.get(name), found.get(name, []), place(name), offers.get(name, ())) for name in names
    ]
