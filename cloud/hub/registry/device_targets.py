"""Targets of devices in the registry: the gateways that a device may appear at, by name or by a selector.

Each row of `device_targets` says at which revision of its tenant a device of this target changed last. A row that is
not present is a tombstone: the device was removed, or has other targets now. A gateway reads the rows of its own
targets from a revision on (`device_changes`), so a change costs only the gateways that it concerns.

Programs before schema version 25 change devices without their targets. They raise `last_revision` of the tenant and not
`tracked_revision`, so the difference of both counts their changes; `track_tenant` catches up.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.labels import LabelError, parse_selector
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import (
    PARAMETERS_MAX,
    device_selectors,
    device_targets,
    device_tenants,
    devices,
)

SELECTORS_MAX: Final = 200
"""Selectors of gateways that the devices of one tenant use: each is compared with the labels of each gateway."""

TOMBSTONES_MAX: Final = 100_000
"""Tombstones of a tenant, some 200 bytes each. A gateway that was away for more removals gets all its devices again."""

TRACKED_AT_ONCE: Final = min(500, PARAMETERS_MAX)
"""Devices that one transaction catches up with, or tombstones that it drops."""

REVISIONS_JUMP: Final = 1_000_000_000
"""Revisions that are left out in an older copy when the clock is behind: more than changes since the copy was made."""

GATEWAY: Final = "g"
"""First letter of a target that is the name of a gateway."""
SELECTOR: Final = "s"
"""First letter of a target that is the text of a selector."""


class SelectorsFull(Exception):
    """The devices of the tenant use as many selectors as they may."""


class _Extension(msgspec.Struct, frozen=True):
    gateways: list[str] = []
    selector: str = ""


class _Extensions(msgspec.Struct, frozen=True):
    waypost: _Extension = _Extension()


class _Registration(msgspec.Struct, frozen=True):
    ext: _Extensions = _Extensions()


class _Present(NamedTuple):
    target: str
    revision: int


def targets_of(document: str) -> list[str]:
    """Return the targets in the stored registration of a device; none if they cannot be read."""
    try:
        found = msgspec.json.decode(document, type=_Registration).ext.waypost
        selector = [f"{SELECTOR}{parse_selector(found.selector)}"] if found.selector else []
    except (msgspec.MsgspecError, LabelError):
        return []
    return [*dict.fromkeys(f"{GATEWAY}{name}" for name in found.gateways), *selector]


def put_targets(tx: sa.Connection, tenant: str, device: str, revision: int, wanted: Sequence[str]) -> None:
    """Set the targets of a device that has changed. Raises `SelectorsFull`."""
    mine = (device_targets.c.tenant == tenant, device_targets.c.device == device)
    tx.execute(
        device_targets.update()
        .where(*mine, device_targets.c.present, device_targets.c.target.not_in(wanted))
        .values(revision=revision, present=False)
    )
    for target in wanted:
        _require_selector(tx, tenant, target)
        one = device_targets.update().where(*mine, device_targets.c.target == target)
        if not tx.execute(one.values(revision=revision, present=True)).rowcount:
            row = {"tenant": tenant, "target": target, "device": device, "revision": revision, "present": True}
            tx.execute(device_targets.insert().values(row))


def mark_changed(tx: sa.Connection, tenant: str, device: str, revision: int) -> None:
    """Note that the credentials of a device have changed."""
    mine = (device_targets.c.tenant == tenant, device_targets.c.device == device, device_targets.c.present)
    tx.execute(device_targets.update().where(*mine).values(revision=revision))


def mark_removed(tx: sa.Connection, tenant: str, names: Sequence[str], revision: int) -> None:
    """Make tombstones of the targets of removed devices."""
    mine = (device_targets.c.tenant == tenant, device_targets.c.device.in_(names), device_targets.c.present)
    tx.execute(device_targets.update().where(*mine).values(revision=revision, present=False))


def forget_targets(tx: sa.Connection, tenant: str) -> None:
    """Delete the tombstones and selectors of a tenant that is removed."""
    tx.execute(device_targets.delete().where(device_targets.c.tenant == tenant))
    tx.execute(device_selectors.delete().where(device_selectors.c.tenant == tenant))


def selectors_of_owner(tx: sa.Connection, owner: str) -> dict[str, list[str]]:
    """Return the selectors that devices of the tenants of an owner use, or have used, as targets."""
    columns = (device_selectors.c.tenant, device_selectors.c.target)
    wanted = sa.select(*columns).join_from(
        device_selectors, device_tenants, device_selectors.c.tenant == device_tenants.c.tenant
    )
    found: dict[str, list[str]] = {}
    for tenant, target in tx.execute(wanted.where(device_tenants.c.owner == owner).order_by(*columns)):
        found.setdefault(tenant, []).append(target)
    return found


class TargetUpkeep:
    """Upkeep of targets, for the thread that opened the database. Each step is a transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database, stopping: Callable[[], bool] = lambda: False) -> None:
        """`stopping` is asked between two transactions; a step that it ends is repeated later."""
        self._database = database
        self._stopping = stopping

    def untracked(self) -> list[str]:
        """Return the tenants that an older program has changed devices of."""
        columns = device_tenants.c
        behind = columns.tracked_revision.is_(None) | (columns.tracked_revision != columns.last_revision)
        wanted = sa.select(columns.tenant).where(behind).order_by(columns.tenant)
        return self._database.transaction(lambda tx: list(tx.execute(wanted).scalars()))

    def track_tenant(self, tenant: str) -> int:
        """Give all devices of a tenant their targets, and removed ones tombstones; return the number of changes."""
        claim = secrets.token_hex(8)
        changes = self._database.transaction(lambda tx: _claim_changes(tx, tenant, claim))
        if not changes:
            return 0
        after: str | None = ""
        count = 0
        while after is not None and not self._stopping():
            before = after
            after, some = self._database.transaction(lambda tx, at=before: _track_some(tx, tenant, at))  # type: ignore[misc]
            count += some
        while not self._stopping() and (some := self._database.transaction(lambda tx: _mark_orphans(tx, tenant))):
            count += some
        if not self._stopping():
            self._database.transaction(lambda tx: _raise_tracked(tx, tenant, changes, claim))
        return count

    def drop_tombstones(self, most: int = TOMBSTONES_MAX) -> int:
        """Drop the oldest tombstones of tenants that have more; return their number."""
        gone = device_targets.c.present.is_(False)
        counting = sa.select(device_targets.c.tenant, sa.func.count()).where(gone).group_by(device_targets.c.tenant)
        full = self._database.transaction(lambda tx: [(row[0], row[1]) for row in tx.execute(counting)])
        dropped = 0
        for tenant, count in full:
            left = count - most
            while left > 0 and not self._stopping() and (some := self._drop_some(tenant, min(left, TRACKED_AT_ONCE))):
                left -= some
                dropped += some
        return dropped

    def _drop_some(self, tenant: str, most: int) -> int:
        return self._database.transaction(lambda tx: _drop_some(tx, tenant, most))


def _require_selector(tx: sa.Connection, tenant: str, target: str) -> None:
    """Note a selector. Raises `SelectorsFull`."""
    if not target.startswith(SELECTOR):
        return
    mine = device_selectors.c.tenant == tenant
    if tx.execute(sa.select(device_selectors.c.target).where(mine, device_selectors.c.target == target)).first():
        return
    counting = sa.select(sa.func.count()).select_from(device_selectors).where(mine)
    if tx.execute(counting).scalar_one() >= SELECTORS_MAX:
        used = device_targets.c.tenant == tenant, device_targets.c.target == device_selectors.c.target
        unused = ~sa.exists().where(*used).correlate(device_selectors)
        if not tx.execute(device_selectors.delete().where(mine, unused)).rowcount:
            raise SelectorsFull(
                f"the devices of tenant {tenant} use {SELECTORS_MAX} selectors, the most that they may: "
                "name gateways, or use a selector that others have"
            )
    tx.execute(device_selectors.insert().values(tenant=tenant, target=target))


def _claim_changes(tx: sa.Connection, tenant: str, claim: str) -> int:
    """Return the number of changes that older programs made, and claim to catch up with them. A tenant that was never
    tracked has one."""
    mine, columns = device_tenants.c.tenant == tenant, device_tenants.c
    row = tx.execute(sa.select(columns.last_revision, columns.tracked_revision).where(mine)).first()
    if row is None:
        return 0
    tx.execute(device_tenants.update().where(mine).values(tracking=claim))
    if row.tracked_revision is None:
        tx.execute(device_tenants.update().where(mine).values(tracked_revision=row.last_revision - 1))
        return 1
    return int(row.last_revision - row.tracked_revision)


def next_revision(tx: sa.Connection, tenant: str) -> int | None:
    """Return a new revision of a tenant, None if it is gone. The difference of both revisions stays."""
    mine, columns = device_tenants.c.tenant == tenant, device_tenants.c
    raised = {"last_revision": columns.last_revision + 1, "tracked_revision": columns.tracked_revision + 1}
    if not tx.execute(device_tenants.update().where(mine).values(raised)).rowcount:
        return None
    return int(tx.execute(sa.select(columns.last_revision).where(mine)).scalar_one())


def _track_some(tx: sa.Connection, tenant: str, after: str) -> tuple[str | None, int]:
    """Give some devices after a name their targets; return the last name, None at the end, and how many changed."""
    mine = (devices.c.tenant == tenant, devices.c.device > after)
    columns = (devices.c.device, devices.c.document, devices.c.revision, devices.c.credentials_revision)
    rows = tx.execute(sa.select(*columns).where(*mine).order_by(devices.c.device).limit(TRACKED_AT_ONCE)).all()
    present = _present_of(tx, tenant, [row.device for row in rows])
    outdated = []
    for name, document, *revisions in rows:
        wanted, there = targets_of(document), present.get(name, [])
        current = all(each.revision >= max(revisions) for each in there)
        if {each.target for each in there} != set(wanted) or not current:
            outdated.append((name, wanted))
    revision = next_revision(tx, tenant) if outdated else None
    for name, wanted in outdated if revision is not None else ():
        try:
            put_targets(tx, tenant, name, revision or 0, wanted)
        except SelectorsFull:  # an older program had no limit: the device keeps the gateways that it names
            put_targets(tx, tenant, name, revision or 0, [each for each in wanted if each.startswith(GATEWAY)])
    return (rows[-1].device if len(rows) == TRACKED_AT_ONCE else None), len(outdated)


def _present_of(tx: sa.Connection, tenant: str, names: Iterable[str]) -> dict[str, list[_Present]]:
    columns = (device_targets.c.device, device_targets.c.target, device_targets.c.revision)
    mine = (device_targets.c.tenant == tenant, device_targets.c.device.in_(list(names)), device_targets.c.present)
    found: dict[str, list[_Present]] = {}
    for device, target, revision in tx.execute(sa.select(*columns).where(*mine)):
        found.setdefault(device, []).append(_Present(target, revision))
    return found


def _mark_orphans(tx: sa.Connection, tenant: str) -> int:
    """Make tombstones for some devices that an older program has removed; return their number."""
    same = (devices.c.tenant == device_targets.c.tenant, devices.c.device == device_targets.c.device)
    wanted = sa.select(device_targets.c.device).where(
        device_targets.c.tenant == tenant, device_targets.c.present, ~sa.exists().where(*same)
    )
    names = list(dict.fromkeys(tx.execute(wanted.limit(TRACKED_AT_ONCE)).scalars()))
    if names and (revision := next_revision(tx, tenant)) is not None:
        mark_removed(tx, tenant, names, revision)
    return len(names)


def _raise_tracked(tx: sa.Connection, tenant: str, changes: int, claim: str) -> None:
    """Count changes of older programs as tracked, unless another hub has claimed them since."""
    columns = device_tenants.c
    raised = {"tracked_revision": columns.tracked_revision + changes, "tracking": None}
    tx.execute(device_tenants.update().where(columns.tenant == tenant, columns.tracking == claim).values(raised))


def _drop_some(tx: sa.Connection, tenant: str, most: int) -> int:
    gone = (device_targets.c.tenant == tenant, device_targets.c.present.is_(False))
    wanted = sa.select(device_targets.c.revision).where(*gone).order_by(device_targets.c.revision)
    revisions = list(tx.execute(wanted.limit(most)).scalars())
    if not revisions:
        return 0
    count = tx.execute(device_targets.delete().where(*gone, device_targets.c.revision <= revisions[-1])).rowcount
    mine = device_tenants.c.tenant == tenant
    tx.execute(device_tenants.update().where(mine).values(dropped_revision=revisions[-1]))
    return int(count)


def restart_gateways(tx: sa.Connection, now_us: int) -> None:
    """Let every gateway get all its devices again, in a registry that is an older copy.

    The original may have given the revisions after those of the copy to other changes, and gateways know them.
    Revisions begin with the time in microseconds, so those after `now_us` are new. The difference of `last_revision`
    and `tracked_revision` counts changes by older programs, and stays.
    """
    columns = device_tenants.c
    further = sa.case(
        (columns.last_revision < now_us, sa.literal(now_us, sa.BigInteger)),
        else_=columns.last_revision + REVISIONS_JUMP,
    )
    tracked = columns.tracked_revision + (further - columns.last_revision)
    values = {"last_revision": further, "tracked_revision": tracked, "dropped_revision": further}
    tx.execute(device_tenants.update().values(values))
