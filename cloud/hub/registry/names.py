"""Known gateways: those that have enrolled or connected, and were not forgotten since.

A forgotten gateway keeps its row with the generation, so that its next connection gets a higher one than any hub may
hold. Its marks, lineages and ledger stay too: what it sends again lands once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.observed import NO_TIME_US
from cloud.hub.registry.schema import certificates, gateways, tenants
from cloud.hub.version_rank import UNRANKED


def known_gateways(tx: sa.Connection, tenant: str) -> dict[str, bool]:
    """Return the known gateways of a tenant by name, with whether each is connected."""
    connected = sa.select(gateways.c.name).where(gateways.c.tenant == tenant, gateways.c.connected.is_(True))
    there = set(tx.execute(connected).scalars())
    return {name: name in there for name in sorted(str(row.name) for row in tx.execute(_known(tenant)))}


def all_gateways(tx: sa.Connection) -> set[Key]:
    """Return (tenant, name) of all gateways that have enrolled or connected, forgotten ones too."""
    connected = sa.select(gateways.c.tenant, gateways.c.name)
    enrolled = sa.select(certificates.c.tenant, certificates.c.gateway)
    return {(row[0], row[1]) for row in tx.execute(sa.union(connected, enrolled))}


def known_names(
    tx: sa.Connection,
    tenant: str,
    conditions: Callable[[sa.ColumnElement[str]], Iterable[sa.ColumnElement[bool]]],
    limit: int,
) -> list[str]:
    """Return the first known gateways of a tenant, in the order of the database. `conditions` returns those that a
    column with names has to meet."""
    # Each part ends at the limit: so an index answers it, however many gateways there are.
    seen = sa.select(gateways.c.name).where(gateways.c.tenant == tenant, gateways.c.forgotten_at.is_(None))
    seen = seen.where(*conditions(gateways.c.name)).order_by(gateways.c.name).limit(limit)
    same = (gateways.c.tenant == certificates.c.tenant, gateways.c.name == certificates.c.gateway)
    gone = sa.exists().where(*same, gateways.c.forgotten_at.is_not(None))
    enrolled = sa.select(certificates.c.gateway.label("name")).where(certificates.c.tenant == tenant, ~gone)
    enrolled = enrolled.where(*conditions(certificates.c.gateway)).distinct().order_by("name").limit(limit)
    parts = [sa.select(each.subquery().c.name) for each in (seen, enrolled)]
    return [str(name) for name in tx.execute(sa.union(*parts).order_by("name").limit(limit)).scalars()]


def is_known(tx: sa.Connection, tenant: str, gateway: str) -> bool:
    """Return whether a gateway is known."""
    row = tx.execute(sa.select(gateways.c.forgotten_at).where(*_row_of(tenant, gateway))).first()
    if row is not None:
        return row.forgotten_at is None
    mine = (certificates.c.tenant == tenant, certificates.c.gateway == gateway)
    return tx.execute(sa.select(certificates.c.serial).where(*mine).limit(1)).first() is not None


def count_known(tx: sa.Connection, tenant: str) -> int:
    """Return the number of known gateways of a tenant."""
    return tx.execute(sa.select(sa.func.count()).select_from(_known(tenant).subquery())).scalar() or 0


def is_connected(tx: sa.Connection, tenant: str, gateway: str, *, but: str = "") -> bool:
    """Return whether a gateway is connected to any hub, as far as the registry knows. `but`: writer id of a hub that
    knows better about itself."""
    query = sa.select(gateways.c.connected).where(*_row_of(tenant, gateway), gateways.c.writer.is_distinct_from(but))
    return bool(tx.execute(query).scalar())


def remote_of(tx: sa.Connection, tenant: str, gateway: str) -> str:
    """Return the address of the last connection of a gateway; empty for one that has never connected."""
    return str(tx.execute(sa.select(gateways.c.remote).where(*_row_of(tenant, gateway))).scalar() or "")


def forgotten_gateways(tx: sa.Connection, since_us: int) -> dict[Key, int]:
    """Return the gateways forgotten since then, with the time."""
    query = sa.select(gateways.c.tenant, gateways.c.name, gateways.c.forgotten_at)
    rows = tx.execute(query.where(gateways.c.forgotten_at >= since_us))
    return {(row.tenant, row.name): row.forgotten_at for row in rows}


def forget(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    """Forget a gateway; return the time, which is later than its last connection by any clock."""
    mine = _row_of(tenant, gateway)
    seen = tx.execute(sa.select(gateways.c.last_seen).where(*mine)).scalar_one_or_none()
    at_us = now_us if seen is None else max(now_us, seen + 1)
    if seen is None:  # enrolled, never connected
        _add(tx, tenant, gateway, now_us)
    # The next gateway of this name is another one, so nothing that was observed of this one is shown then.
    unknown = {"observed": None, "refusing": False, "oldest_at": NO_TIME_US, "full_at": NO_TIME_US, "waiting": 0}
    version = {"version": None, "version_rank": UNRANKED}
    tx.execute(gateways.update().where(*mine).values(forgotten_at=at_us, **unknown, **version))
    return at_us


def remember(tx: sa.Connection, tenant: str, gateway: str) -> None:
    """Undo the forgetting of a gateway."""
    tx.execute(gateways.update().where(*_row_of(tenant, gateway)).values(forgotten_at=None))


def _row_of(tenant: str, gateway: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return gateways.c.tenant == tenant, gateways.c.name == gateway


def _known(tenant: str) -> sa.CompoundSelect[tuple[str]]:
    mine = gateways.c.tenant == tenant
    gone = sa.select(gateways.c.name).where(mine, gateways.c.forgotten_at.is_not(None))
    enrolled = sa.select(certificates.c.gateway.label("name")).where(
        certificates.c.tenant == tenant, certificates.c.gateway.not_in(gone)
    )
    return sa.union(enrolled, sa.select(gateways.c.name).where(mine, gateways.c.forgotten_at.is_(None)))


def _add(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> None:
    """Add the row of a gateway that has never connected."""
    if tx.execute(sa.select(tenants.c.name).where(tenants.c.name == tenant)).first() is None:
        tx.execute(tenants.insert().values(name=tenant, created_at=now_us))
    times = {"first_seen": now_us, "last_seen": now_us}
    tx.execute(
        gateways.insert().values(
            tenant=tenant, name=gateway, **times, connected=False, remote="", generation=0, landed=0
        )
    )
