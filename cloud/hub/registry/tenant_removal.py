"""Removal of a tenant from the registry in parts: a mark first, then its rows some at a time, its own row last.

While a tenant is being removed, nothing new can be made in it (`require_tenant`). Each step is one transaction, and any
hub or command goes on where another one has stopped. What gateways have landed stays in the lake, so what the registry
knows about it stays too (`KEPT`): a gateway of the same name that enrols later lands nothing twice.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry import names
from cloud.hub.registry.campaign_rows import close_campaigns_of
from cloud.hub.registry.configurations import older_hub
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import NotForgotten, forget_in, revoke_in
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.rollouts import abort_in
from cloud.hub.registry.schema import (
    TENANTS_END,
    artefacts,
    certificates,
    device_tenants,
    gateways,
    rollout_members,
    rollouts,
    selectors,
    tenant_quotas,
    tenant_removals,
    tenants,
    tokens,
    users,
)
from cloud.hub.registry.tenant_contents import contents_of
from cloud.hub.registry.tenant_quotas import clear_quota
from cloud.hub.registry.tenant_tables import DELETED, OF_DEVICES, OF_USERS, count_rows, delete_some, deleted_of, of_user
from cloud.hub.registry.users import raise_revision
from cloud.hub.rollout import GOING

GATEWAYS_A_STEP: Final = 50
"""Gateways that one transaction revokes or forgets, each with some ten statements."""


REMOVAL_S_MIN: Final = 15.0
"""Shortest time from the begin of a removal to its end, on the clock of the program that ends it. A hub looks every two
seconds, and one that has not for `cloud.hub.removals.FRESH_S` takes no new applications: so each hub has ended the old
tenant before a new one of its name has users."""


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
    """Number of removals of this name, with this one."""
    begun_at: int
    begun_by: str
    forced: bool
    """True: gateways, users and all others are removed; False: there were none."""
    ended_at: int | None
    """None while it goes on."""


class RemovalStep(enum.Enum):
    """Result of a step."""

    MORE = "more"
    """There is more to do now."""
    WAITS = "waits"
    """Hubs have to end connections, to delete images, or to see the removal first."""
    ENDED = "ended"
    LEFT = "left"
    """It has ended without a removal, as an older program has made something in the tenant: it is there again."""


_ROW: Final = [tenant_removals.c[name] for name in TenantRemoval._fields]


class TenantRemovals:
    """Removals for the thread that opened the database. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def contents(self, tenant: str, now_us: int) -> dict[str, int]:
        """Return the number of things of a tenant by kind, without kinds of which there are none."""
        return self._database.transaction(lambda tx: contents_of(tx, tenant, now_us))

    def begin(
        self, tenant: str, by: str, now_us: int, *, forced: bool, more: Mapping[str, int] | None = None
    ) -> TenantRemoval:
        """Mark a tenant as being removed; one that is marked already stays so. `more`: things that are not in the
        registry, by kind. Raises `TenantNotRemoved`: unless `forced`, nothing may be left in it."""

        def work(tx: sa.Connection) -> TenantRemoval:
            before = _removal(tx, tenant)
            if before is not None and before.ended_at is None and (before.forced or not forced):
                return before
            found = {
                **contents_of(tx, tenant, now_us),
                **{kind: count for kind, count in (more or {}).items() if count},
            }
            _require_removable(tx, tenant, found, before, now_us, forced=forced)
            number = (before.number if before is not None else 0) + (before is None or before.ended_at is not None)
            made = TenantRemoval(tenant, number, now_us, by, forced, None)
            tx.execute(tenant_removals.delete().where(tenant_removals.c.tenant == tenant))
            tx.execute(tenant_removals.insert().values(**made._asdict()))
            notify(tx, NoticeTopic.TENANTS)
            return made

        return self._database.transaction(work)

    def all(self) -> list[TenantRemoval]:
        """Return the last removal of each name, also those that have ended."""
        query = sa.select(*_ROW).order_by(tenant_removals.c.tenant)
        return self._database.transaction(lambda tx: [TenantRemoval(*row) for row in tx.execute(query)])

    def step(self, tenant: str, now_us: int, *, may_end: bool = True) -> RemovalStep:
        """Take the next step of a removal; `RemovalStep.ENDED` without one. `may_end`: it may be the last one, see
        `REMOVAL_S_MIN`."""

        def work(tx: sa.Connection) -> RemovalStep:
            removal = _removal(tx, tenant)
            if removal is None or removal.ended_at is not None:
                return RemovalStep.ENDED
            if not removal.forced and contents_of(tx, tenant, now_us):
                return _give_up(tx, removal, now_us)
            for phase in _PHASES:
                if phase(tx, tenant, now_us):
                    return RemovalStep.MORE
            if contents_of(tx, tenant, now_us) or not may_end:
                return RemovalStep.WAITS
            return _end(tx, removal, now_us)

        return self._database.transaction(work)


# --- phases: each does some of its work and returns whether it has done anything -------------------------------------


def _end_users(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    found = [(table, delete_some(tx, table, of_user(column, tenant))) for table, column in OF_USERS]
    if any(table is users and count for table, count in found):
        raise_revision(tx)
    return any(count for _, count in found)


def _revoke_gateways(tx: sa.Connection, tenant: str, now_us: int) -> bool:
    valid = (certificates.c.revoked_at.is_(None), certificates.c.ends_at > now_us)
    query = sa.select(certificates.c.gateway).where(certificates.c.tenant == tenant, *valid).distinct()
    found = list(tx.execute(query.limit(GATEWAYS_A_STEP)).scalars())
    for gateway in found:
        revoke_in(tx, tenant, gateway, now_us)
    return bool(found)


def _end_tokens(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    return delete_some(tx, tokens, tokens.c.tenant == tenant) > 0


def _end_rollouts(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    """Abort those that go on; then delete their gateways, and the roll-outs without any."""
    mine = rollouts.c.tenant == tenant
    going = sa.select(rollouts.c.id).where(mine, rollouts.c.state.in_([each.value for each in GOING]))
    found = list(tx.execute(going.limit(GATEWAYS_A_STEP)).scalars())
    for rollout in found:
        abort_in(tx, rollout)
    of_mine = rollout_members.c.rollout.in_(sa.select(rollouts.c.id).where(mine))
    return bool(found) or delete_some(tx, rollout_members, of_mine) > 0


def _end_campaigns(tx: sa.Connection, tenant: str, now_us: int) -> bool:
    return close_campaigns_of(tx, tenant, now_us) > 0


def _end_selectors(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    return delete_some(tx, selectors, selectors.c.tenant == tenant) > 0


def _forget_gateways(tx: sa.Connection, tenant: str, now_us: int) -> bool:
    """Forget gateways that are not connected; hubs disconnect those with revoked certificates."""

    there = gateways.alias()

    def away(name: sa.ColumnElement[str]) -> tuple[sa.ColumnElement[bool]]:
        mine = (there.c.tenant == tenant, there.c.name == name, there.c.connected.is_(True))
        return (~sa.exists().where(*mine),)

    found = names.known_names(tx, tenant, away, GATEWAYS_A_STEP)
    for gateway in found:
        with contextlib.suppress(NotForgotten):  # it has connected just now
            forget_in(tx, tenant, gateway, now_us)
    return bool(found)


def _end_devices(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    query = sa.select(device_tenants.c.tenant).where(device_tenants.c.owner == tenant).limit(1)
    mine = tx.execute(query).scalar()
    if mine is None:
        return False
    if not any(delete_some(tx, table, table.c.tenant == mine) for table in OF_DEVICES):
        tx.execute(device_tenants.delete().where(device_tenants.c.tenant == mine))
    return True


def _mark_artefacts(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    """Mark artefacts as removed: hubs delete their images, and then the rows."""
    mine = (artefacts.c.tenant == tenant, artefacts.c.removing.is_(False))
    return bool(tx.execute(artefacts.update().where(*mine).values(removing=True)).rowcount)


def _delete_rows(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    return any(delete_some(tx, table, *deleted_of(table, tenant)) for table in DELETED)


def _clear_quota(tx: sa.Connection, tenant: str, _now_us: int) -> bool:
    return clear_quota(tx, tenant)


_PHASES: Final[tuple[Callable[[sa.Connection, str, int], bool], ...]] = (
    _end_users, _end_tokens, _revoke_gateways, _end_rollouts, _end_campaigns, _end_selectors, _forget_gateways,
    _end_devices, _mark_artefacts, _delete_rows, _clear_quota,
)  # fmt: skip
"""Steps of a removal in their order: users and gateways end first, then what they have made."""


# --- inside ----------------------------------------------------------------------------------------------------------


def _removal(tx: sa.Connection, tenant: str) -> TenantRemoval | None:
    row = tx.execute(sa.select(*_ROW).where(tenant_removals.c.tenant == tenant)).first()
    return None if row is None else TenantRemoval(*row)


def _require_removable(
    tx: sa.Connection,
    tenant: str,
    found: Mapping[str, int],
    before: TenantRemoval | None,
    now_us: int,
    *,
    forced: bool,
) -> None:
    """Check that a tenant may be removed. Raises `TenantNotRemoved`."""
    if tenant == DEFAULT_TENANT:
        raise TenantNotRemoved(RemovalRefusal.DEFAULT, f"tenant {tenant} is never removed")
    if not found and not _has_rows(tx, tenant, before):
        raise TenantNotRemoved(RemovalRefusal.UNKNOWN, f"there is no tenant {tenant}")
    if (hub := older_hub(tx, TENANTS_END, now_us)) is not None:
        words = f"hub {hub} has an older version, which makes things in tenants that are being removed"
        raise TenantNotRemoved(RemovalRefusal.OLDER_HUB, words)
    if found and not forced:
        what = ", ".join(f"{count} {kind}" for kind, count in found.items())
        raise TenantNotRemoved(RemovalRefusal.IN_USE, f"tenant {tenant} still has {what}", found)


def _has_rows(tx: sa.Connection, tenant: str, before: TenantRemoval | None) -> bool:
    """Return whether a tenant without any contents exists. One that was removed keeps its row in `tenants` while it has
    messages in the lake."""
    quota = (tenant_quotas.c.tenant == tenant, tenant_quotas.c.document.is_not(None))
    if (before is None or before.number == 0) and count_rows(tx, tenants, tenants.c.name == tenant):
        return True
    return bool(count_rows(tx, tenant_quotas, *quota)) or any(
        count_rows(tx, each, *deleted_of(each, tenant)) for each in DELETED
    )


def _end(tx: sa.Connection, removal: TenantRemoval, now_us: int) -> RemovalStep:
    """End a removal. The row of the tenant goes too, unless gateways of it keep their positions in the lake."""
    mine = tenant_removals.c.tenant == removal.tenant
    tx.execute(tenant_removals.update().where(mine).values(ended_at=max(now_us, removal.begun_at)))
    if not count_rows(tx, gateways, gateways.c.tenant == removal.tenant):
        tx.execute(tenants.delete().where(tenants.c.name == removal.tenant))
    notify(tx, NoticeTopic.TENANTS)
    return RemovalStep.ENDED


def _give_up(tx: sa.Connection, removal: TenantRemoval, now_us: int) -> RemovalStep:
    """End a removal that was not forced, as there is something in the tenant now: it is as before."""
    mine, ended_at = tenant_removals.c.tenant == removal.tenant, max(now_us, removal.begun_at)
    tx.execute(tenant_removals.update().where(mine).values(ended_at=ended_at, number=removal.number - 1))
    notify(tx, NoticeTopic.TENANTS)
    return RemovalStep.LEFT
