"""Removal of a tenant from the registry in parts: a mark first, then its rows some at a time, the end last.

From the mark on nothing is made in the tenant, and its name is not given out again (`require_tenant`); the row of the
removal stays for ever. So each step removes only, and whatever appears in the tenant later may be removed as well. Each
step is one transaction with the place where the next one goes on; one hub at a time takes them, under a lease. The
lease saves work only: steps of two hubs do no harm.

What gateways have landed stays in the lake, so what the registry knows about it stays too (`KEPT`).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry import names
from cloud.hub.registry.audit import AuditEntry
from cloud.hub.registry.campaign_rows import close_campaigns_of
from cloud.hub.registry.configurations import older_hub
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import NotForgotten, forget_in, revoke_in
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.rollouts import abort_in
from cloud.hub.registry.schema import (
    TENANTS_END,
    artefacts,
    audit,
    certificates,
    device_tenants,
    gateways,
    require_programs,
    rollout_members,
    rollouts,
    tenant_quotas,
    tenant_removals,
    tenants,
    users,
)
from cloud.hub.registry.tenant_contents import FLEET_USERS, contents_of, is_of_fleet, users_of
from cloud.hub.registry.tenant_quotas import clear_quota
from cloud.hub.registry.tenant_tables import (
    DELETED,
    OF_DEVICES,
    OF_USERS,
    clear_newest_command,
    count_rows,
    delete_some,
    deleted_of,
    of_user,
)
from cloud.hub.registry.users import raise_revision
from cloud.hub.rollout import GOING

GATEWAYS_A_STEP: Final = 50
"""Gateways that one transaction revokes or forgets, each with some ten statements."""
SEEN_S: Final = 5.0
"""Time after the begin in which connected gateways are not revoked: each hub looks every two seconds, then lands and
answers what they have sent, and disconnects them."""
LEASE_S: Final = 60.0
"""Time for which a hub that has taken a step takes the next ones alone; another one goes on after it."""


class RemovalRefusal(enum.Enum):
    """Reason code of a refused removal."""

    DEFAULT = "default-tenant"
    UNKNOWN = "tenant-not-found"
    IN_USE = "tenant-in-use"
    OLDER_HUB = "older-hub"


class TenantNotRemoved(Exception):
    """The tenant is not removed; the message says why."""

    def __init__(self, why: RemovalRefusal, words: str, contents: Mapping[str, int] | None = None) -> None:
        super().__init__(words)
        self.why: Final = why
        self.contents: Final = dict(contents or {})
        """Number of things that are there, by kind."""


class TenantRemoval(NamedTuple):
    """Removal of a tenant. Times are UTC microseconds since 1970."""

    tenant: str
    number: int
    """Number of the last change of all removals; a begin and an end each take the next one."""
    begun_at: int
    begun_by: str
    forced: bool
    """False: nothing was left in the tenant at the begin."""
    ended_at: int | None
    """None while it goes on."""


class RemovalChanges(NamedTuple):
    """Removals that have changed."""

    number: int
    """Number of the last change."""
    connections: int
    """Connections to the registry so far."""
    whole: bool
    """These are all removals, so others that were known are lost."""
    removals: list[TenantRemoval]


class RemovalStep(enum.Enum):
    """Result of a step."""

    MORE = "more"
    """There is more to do now."""
    WAITS = "waits"
    """Something is left that a step cannot remove: hubs have to end connections, or to delete images."""
    HELD = "held"
    """Another hub takes the steps now."""
    ENDED = "ended"
    NONE = "none"
    """There is no removal that goes on: another hub has ended it, or the registry is an older copy."""


class StepResult(NamedTuple):
    """Result of a step, and what is left in the tenant by kind where it waits for that."""

    step: RemovalStep
    left: Mapping[str, int]


class _Done(NamedTuple):
    """Part of a phase that was done."""

    position: str = ""
    """Name after which the phase goes on."""
    changed: bool = True
    """False: all that was found has to stay for now."""


_Phase = Callable[[sa.Connection, str, str, int], _Done | None]
"""Part of a removal: gets the transaction, the tenant, the position and the time (UTC microseconds). Returns None when
nothing is left to do."""
_ROW: Final = [tenant_removals.c[name] for name in TenantRemoval._fields]
_NUMBER: Final = sa.func.coalesce(sa.func.max(tenant_removals.c.number), 0)


def removal_line(
    tenant: str, user: str, remote: str, now_us: int, contents: Mapping[str, int], *, forced: bool
) -> AuditEntry:
    """Return the line of the audit about the begin of a removal. `contents`: what is in the tenant, by kind."""
    before, after = (msgspec.json.encode(each).decode() for each in (dict(contents), {"forced": forced}))
    return AuditEntry(now_us, user, remote, tenant, "tenant.remove", tenant, before, after, 202, "")


class TenantRemovals:
    """Removals for the thread that opened the database. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def contents(self, tenant: str, now_us: int) -> dict[str, int]:
        """Return the number of things of a tenant by kind, without kinds of which there are none."""
        return self._database.transaction(lambda tx: contents_of(tx, tenant, now_us))

    def begin(
        self,
        tenant: str,
        line: AuditEntry,
        *,
        forced: bool,
        more: Mapping[str, int] | None = None,
        known: bool = False,
    ) -> TenantRemoval:
        """Mark a tenant as removed, with its line of the audit; a removal that goes on stays as it is. `more`: things
        that are not in the registry, by kind. `known`: the tenant exists, also if the registry has nothing of it; one
        with users of an issuer only may be unknown, so a forced removal takes any name. Raises `TenantNotRemoved`:
        unless `forced`, nothing may be left in it; users with rights on every tenant may never be."""

        def work(tx: sa.Connection) -> TenantRemoval:
            if tenant == DEFAULT_TENANT:
                raise TenantNotRemoved(RemovalRefusal.DEFAULT, f"tenant {tenant} is never removed")
            before = _removal(tx, tenant)
            if before is not None and before.ended_at is None:
                return before
            found = _all_of(contents_of(tx, tenant, line.at), more)
            if not found and (before is not None or not (forced or known or _has_rows(tx, tenant))):
                what = f"there is no tenant {tenant}" if before is None else f"tenant {tenant} was removed already"
                raise TenantNotRemoved(RemovalRefusal.UNKNOWN, what)
            _require_removable(tx, tenant, found, line.at, forced=forced)
            made = TenantRemoval(tenant, _next_number(tx), line.at, line.user, forced, None)
            tx.execute(tenant_removals.delete().where(tenant_removals.c.tenant == tenant))
            tx.execute(tenant_removals.insert().values(**made._asdict(), phase=0, position="", changed=False))
            tx.execute(audit.insert().values(**line._asdict()))
            require_programs(tx, TENANTS_END)
            notify(tx, NoticeTopic.TENANTS)
            return made

        return self._database.transaction(work)

    def changes(self, number: int, connections: int) -> RemovalChanges:
        """Return the removals with a later change than this number; all of them over another connection than
        `connections`, or if that change is not there any more: then the registry may be an older copy."""

        def work(tx: sa.Connection) -> RemovalChanges:
            newest = int(tx.execute(sa.select(_NUMBER)).scalar_one())
            whole = newest < number or self._database.connections != connections
            query = sa.select(*_ROW).where(tenant_removals.c.number > (0 if whole else number))
            rows = [TenantRemoval(*row) for row in tx.execute(query.order_by(tenant_removals.c.number))]
            return RemovalChanges(newest, self._database.connections, whole, rows)

        return self._database.transaction(work)

    def used_again(self) -> list[str]:
        """Return tenants with known gateways although their removal has ended: a hub that could not reach the registry
        has served them in the meantime, and has reported them since."""
        known = sa.exists().where(gateways.c.tenant == tenant_removals.c.tenant, gateways.c.forgotten_at.is_(None))
        query = sa.select(tenant_removals.c.tenant).where(tenant_removals.c.ended_at.is_not(None), known)
        return self._database.transaction(lambda tx: list(tx.execute(query).scalars()))

    def go_on(self, ended: Collection[str]) -> None:
        """Continue removals that have ended, see `used_again`."""

        def work(tx: sa.Connection) -> None:
            for tenant in ended:
                values = {"ended_at": None, "phase": 0, "position": "", "changed": False, "number": _next_number(tx)}
                mine = (tenant_removals.c.tenant == tenant, tenant_removals.c.ended_at.is_not(None))
                tx.execute(tenant_removals.update().where(*mine).values(**values))
            notify(tx, NoticeTopic.TENANTS)

        self._database.transaction(work)

    def step(self, tenant: str, hub: str, now_us: int, more: Mapping[str, int] | None = None) -> StepResult:
        """Take the next step of a removal; `RemovalStep.NONE` without one. `hub` takes it; `more`: things that are
        there and not in the registry, by kind."""
        return self._database.transaction(lambda tx: _step(tx, tenant, hub, now_us, more))


# --- phases ----------------------------------------------------------------------------------------------------------


def _end_users(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    """Delete the users, except those with rights on every tenant."""
    gone = [name for name, document in users_of(tx, tenant).items() if not is_of_fleet(document)]
    if not gone:
        return None
    for name in gone:
        tx.execute(users.delete().where(users.c.name == name))
    raise_revision(tx)
    return _Done()


def _end_sessions(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    return _Done() if any(delete_some(tx, table, of_user(name, tenant)) for table, name in OF_USERS) else None


def _revoke_gateways(tx: sa.Connection, tenant: str, position: str, now_us: int) -> _Done | None:
    valid = (certificates.c.revoked_at.is_(None), certificates.c.ends_at > now_us)
    query = sa.select(certificates.c.gateway).where(certificates.c.tenant == tenant, *valid).distinct()
    query = query.where(certificates.c.gateway > position).order_by(certificates.c.gateway).limit(GATEWAYS_A_STEP)
    found = list(tx.execute(query).scalars())
    for gateway in found:
        revoke_in(tx, tenant, gateway, now_us)
    return _Done(found[-1]) if found else None


def _end_rollouts(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    """Abort those that go on; then delete their gateways, and then all."""
    mine = rollouts.c.tenant == tenant
    going = sa.select(rollouts.c.id).where(mine, rollouts.c.state.in_([each.value for each in GOING]))
    found = list(tx.execute(going.limit(GATEWAYS_A_STEP)).scalars())
    for rollout in found:
        abort_in(tx, rollout)
    of_mine = rollout_members.c.rollout.in_(sa.select(rollouts.c.id).where(mine))
    if found or delete_some(tx, rollout_members, of_mine):
        return _Done()
    return _Done() if delete_some(tx, rollouts, mine) else None


def _end_campaigns(tx: sa.Connection, tenant: str, _position: str, now_us: int) -> _Done | None:
    return _Done() if close_campaigns_of(tx, tenant, now_us) else None


def _forget_gateways(tx: sa.Connection, tenant: str, position: str, now_us: int) -> _Done | None:
    """Forget gateways that are not connected; hubs disconnect all."""
    there = gateways.alias()

    def away(name: sa.ColumnElement[str]) -> tuple[sa.ColumnElement[bool], ...]:
        mine = (there.c.tenant == tenant, there.c.name == name, there.c.connected.is_(True))
        return name > position, ~sa.exists().where(*mine)

    found, forgotten = names.known_names(tx, tenant, away, GATEWAYS_A_STEP), 0
    for gateway in found:
        with contextlib.suppress(NotForgotten):  # it has a certificate that a slower clock holds for valid
            forget_in(tx, tenant, gateway, now_us)
            forgotten += 1
    return _Done(found[-1], forgotten > 0) if found else None


def _end_devices(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    query = sa.select(device_tenants.c.tenant).where(device_tenants.c.owner == tenant).limit(1)
    mine = tx.execute(query).scalar()
    if mine is None:
        return None
    if not any(delete_some(tx, table, table.c.tenant == mine) for table in OF_DEVICES):
        tx.execute(device_tenants.delete().where(device_tenants.c.tenant == mine))
    return _Done()


def _mark_artefacts(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    """Mark artefacts as removed: hubs delete their images, and then the rows."""
    mine = (artefacts.c.tenant == tenant, artefacts.c.removing.is_(False))
    return _Done() if tx.execute(artefacts.update().where(*mine).values(removing=True)).rowcount else None


def _delete_rows(table: sa.Table, tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    return _Done() if delete_some(tx, table, *deleted_of(table, tenant)) else None


def _clear_rest(tx: sa.Connection, tenant: str, _position: str, _now_us: int) -> _Done | None:
    found = (clear_newest_command(tx, tenant), clear_quota(tx, tenant))
    return _Done() if any(found) else None


PHASES: Final[tuple[_Phase, ...]] = (
    _end_users, _end_sessions, _revoke_gateways, _end_rollouts, _end_campaigns, _forget_gateways, _end_devices,
    _mark_artefacts, *(partial(_delete_rows, table) for table in DELETED if table is not rollouts), _clear_rest,
)  # fmt: skip
"""Phases of a removal in their order: users and gateways end first, then what they have made."""


# --- inside ----------------------------------------------------------------------------------------------------------


def _step(tx: sa.Connection, tenant: str, hub: str, now_us: int, more: Mapping[str, int] | None) -> StepResult:
    mine = tenant_removals.c.tenant == tenant
    row = tx.execute(sa.select(tenant_removals).where(mine)).first()
    if row is None or row.ended_at is not None:
        return StepResult(RemovalStep.NONE, {})
    lease_us = int(LEASE_S * 1_000_000)
    if row.holder not in (None, hub) and 0 < row.held_until - now_us <= lease_us:
        return StepResult(RemovalStep.HELD, {})
    lease = {"holder": hub, "held_until": now_us + lease_us}

    def store(phase: int, position: str, changed: bool) -> None:
        values = {"phase": phase, "position": position, "changed": changed, **lease}
        tx.execute(tenant_removals.update().where(mine).values(**values))

    connected = (gateways.c.tenant == tenant, gateways.c.connected.is_(True))
    if 0 <= now_us - row.begun_at < SEEN_S * 1_000_000 and count_rows(tx, gateways, *connected):
        store(row.phase, row.position, row.changed)
        return StepResult(RemovalStep.WAITS, _all_of(contents_of(tx, tenant, now_us), more))
    position, done = row.position, None
    for phase in range(row.phase, len(PHASES)):
        if (done := PHASES[phase](tx, tenant, position, now_us)) is not None:
            store(phase, done.position, row.changed or done.changed)
            break
        position = ""
    else:
        done = None
        store(0, "", False)
    if done is not None or row.changed:  # only a whole pass that finds nothing has seen that all is gone
        return StepResult(RemovalStep.MORE, {})
    if left := _all_of(contents_of(tx, tenant, now_us), more):
        return StepResult(RemovalStep.WAITS, left)
    values = {"ended_at": max(now_us, row.begun_at), "number": _next_number(tx)}
    tx.execute(tenant_removals.update().where(mine).values(**values))
    notify(tx, NoticeTopic.TENANTS)
    return StepResult(RemovalStep.ENDED, {})


def _removal(tx: sa.Connection, tenant: str) -> TenantRemoval | None:
    row = tx.execute(sa.select(*_ROW).where(tenant_removals.c.tenant == tenant)).first()
    return None if row is None else TenantRemoval(*row)


def _next_number(tx: sa.Connection) -> int:
    return int(tx.execute(sa.select(_NUMBER)).scalar_one()) + 1


def _all_of(found: Mapping[str, int], more: Mapping[str, int] | None) -> dict[str, int]:
    """Return what is in the registry, and more, by kind."""
    return {**found, **{kind: found.get(kind, 0) + count for kind, count in (more or {}).items() if count}}


def _require_removable(
    tx: sa.Connection,
    tenant: str,
    found: Mapping[str, int],
    now_us: int,
    *,
    forced: bool,
) -> None:
    """Check that a tenant may be removed. Raises `TenantNotRemoved`."""
    if (hub := older_hub(tx, TENANTS_END, now_us)) is not None:
        words = f"hub {hub} has an older version, which makes things in tenants that were removed"
        raise TenantNotRemoved(RemovalRefusal.OLDER_HUB, words)
    if count := found.get(FLEET_USERS):
        words = f"{count} users of tenant {tenant} have rights on every tenant ($fleet), and are not removed with it"
        raise TenantNotRemoved(RemovalRefusal.IN_USE, words, found)
    if found and not forced:
        what = ", ".join(f"{count} {kind}" for kind, count in found.items())
        raise TenantNotRemoved(RemovalRefusal.IN_USE, f"tenant {tenant} still has {what}", found)


def _has_rows(tx: sa.Connection, tenant: str) -> bool:
    """Return whether a tenant without any contents exists."""
    quota = (tenant_quotas.c.tenant == tenant, tenant_quotas.c.document.is_not(None))
    return (
        bool(count_rows(tx, tenants, tenants.c.name == tenant))
        or bool(count_rows(tx, tenant_quotas, *quota))
        or any(count_rows(tx, each, *deleted_of(each, tenant)) for each in DELETED)
    )
