"""Gateways that are connected to no hub, for the alert rules. For a thread that only reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.schema import gateways, writers


class AwayGateway(NamedTuple):
    """Gateway that is connected to no hub. Times are UTC microseconds."""

    tenant: str
    name: str
    first_seen: int
    last_seen: int
    writer: str | None
    """Hub of its last connection."""
    full_at: int
    """Time at which its card is full; `cloud.hub.observed.NO_TIME_US` if unknown."""


class AwayGateways(NamedTuple):
    """Gateways away, and what is known of others."""

    away: Sequence[AwayGateway]
    others: frozenset[Key]
    """Known gateways among the requested ones, without `away`: connected to a hub, or beyond the limit."""


_AWAY: Final = [gateways.c[name] for name in AwayGateway._fields]
_KNOWN: Final = gateways.c.forgotten_at.is_(None)


def read_away(tx: sa.Connection, hub: str, asked: Collection[Key], most: int) -> AwayGateways:
    """Return the gateways away, the `most` that were seen last; and which of `asked` are known besides. `hub`: writer
    id of the hub that reads. Gateways of hubs with another lake are away for those only."""
    query = sa.select(*_AWAY).where(_KNOWN, gateways.c.connected.is_(False), _of_this_lake(hub))
    rows = tx.execute(query.order_by(gateways.c.last_seen.desc(), gateways.c.tenant, gateways.c.name).limit(most))
    away = [AwayGateway(*row) for row in rows]
    rest = set(asked).difference((each.tenant, each.name) for each in away)
    return AwayGateways(away, _known(tx, hub, rest) if rest else frozenset())


def _known(tx: sa.Connection, hub: str, keys: Collection[Key]) -> frozenset[Key]:
    query = select_gateways(tx, keys).where(_KNOWN, gateways.c.connected.is_(True) | _of_this_lake(hub))
    rows = tx.execute(query)
    return frozenset((row.tenant, row.name) for row in rows)


def _of_this_lake(hub: str) -> sa.ColumnElement[bool]:
    """Return the condition that the last connection of a gateway was not to a hub with another lake."""
    lake = sa.select(writers.c.lake).where(writers.c.id == hub).scalar_subquery()
    other = (writers.c.id != hub, writers.c.lake.is_not(None), writers.c.lake.is_distinct_from(lake))
    return gateways.c.writer.is_(None) | gateways.c.writer.not_in(sa.select(writers.c.id).where(*other))
