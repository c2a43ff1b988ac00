"""Pages of the problems in the registry: by name over the fleet, and the places of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import gateways, problems
from edge.health.problems import Severity

PLACES_SHOWN_MAX: Final = 10
"""Places of a problem that the list by name has: as many as a person reads in a row."""

Place = tuple[str, str, str, str]
"""Tenant, gateway, hub and digest of a problem, in the order of a page."""


class ProblemFilter(NamedTuple):
    """Filter of problems; None and empty values match everything."""

    tenant: str | None = None
    gateway: str = ""
    severity: str = ""
    code: str = ""


class PlacedProblem(NamedTuple):
    """Problem of one gateway or hub."""

    tenant: str
    gateway: str
    hub: str
    digest: str
    code: str
    severity: str
    what: str
    next_step: str
    since: int
    connected: bool | None = None
    """State of the gateway; None for a hub."""
    last_seen: int | None = None
    """Time the gateway was last seen; None for a hub."""

    @property
    def place(self) -> Place:
        """Position in a page."""
        return self.tenant, self.gateway, self.hub, self.digest


class ProblemGroup(NamedTuple):
    """Problems of one name."""

    code: str
    severity: str
    """The worst of them."""
    total: int
    since: int
    """Begin of the first one."""
    gateways: int
    """Gateways that have it."""
    away: int
    """Gateways that have it and are not connected: it is as they have last reported it."""
    hubs: int
    """Hubs that have it."""
    places: Sequence[PlacedProblem]
    """Some of them."""


_COLUMNS: Final = [problems.c[name] for name in PlacedProblem._fields[:9]]
_ORDER: Final = (problems.c.tenant, problems.c.gateway, problems.c.hub, problems.c.digest)
_RANKS: Final = {each.value: each.rank for each in Severity}
_SAME: Final = (problems.c.tenant == gateways.c.tenant) & (problems.c.gateway == gateways.c.name)
_PLACES: Final = (
    sa.select(*_COLUMNS, gateways.c.connected, gateways.c.last_seen)
    .select_from(problems.outerjoin(gateways, _SAME))
    .order_by(*_ORDER)
)


class ProblemReader:
    """Reads the problems of an existing registry, for the thread that creates it. It delays no writer. Every method is
    one transaction; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        self._database = Database(url, reading=True)

    def close(self) -> None:
        self._database.close()

    def groups(
        self, wanted: ProblemFilter, after: str, limit: int, places_max: int = PLACES_SHOWN_MAX
    ) -> tuple[list[ProblemGroup], int]:
        """Return problems by name, in its order, and the number of all names. `after`: last name of the page before;
        `places_max`: places of each."""
        conditions = list(_conditions(wanted))
        rank = sa.func.min(sa.case(_RANKS, value=problems.c.severity, else_=len(_RANKS)))
        columns = (problems.c.code, rank, sa.func.count(), sa.func.min(problems.c.since))
        query = sa.select(*columns).where(*conditions, problems.c.code > after).group_by(problems.c.code)
        names = sa.select(sa.func.count(sa.distinct(problems.c.code))).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[ProblemGroup], int]:
            rows = tx.execute(query.order_by(problems.c.code).limit(limit)).all()
            more, away, of_hubs = _repeated(tx, conditions), _away(tx, conditions), _of_hubs(tx, conditions)
            severities, found = [*_RANKS, ""], []
            for code, worst, total, since in rows:
                of_hub, hubs = of_hubs.get(code, (0, 0))
                there, places = total - of_hub - more.get(code, 0), _places(tx, conditions, code, places_max)
                one = ProblemGroup(code, severities[worst], total, since, there, away.get(code, 0), hubs, places)
                found.append(one)
            return found, tx.execute(names).scalar() or 0

        return self._database.transaction(work)

    def places(self, wanted: ProblemFilter, after: Place | None, limit: int) -> tuple[list[PlacedProblem], int]:
        """Return problems by place, and the number of all. `after`: last place of the page before."""
        conditions = list(_conditions(wanted))
        query = _PLACES.where(*conditions).limit(limit)
        if after is not None:
            query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*map(sa.literal, after)))
        counting = sa.select(sa.func.count()).select_from(problems).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[PlacedProblem], int]:
            return [PlacedProblem(*row) for row in tx.execute(query)], tx.execute(counting).scalar() or 0

        return self._database.transaction(work)

    def silent_gateways(self, seen_before: int, limit: int) -> list[Key]:
        """Return gateways with problems that are not connected and were seen before a time in UTC microseconds, or are
        not known any more."""
        known = gateways.c.forgotten_at.is_(None) & gateways.c.name.is_not(None)
        seen = (gateways.c.connected == sa.true()) | (gateways.c.last_seen >= seen_before)
        query = sa.select(problems.c.tenant, problems.c.gateway).select_from(problems.outerjoin(gateways, _SAME))
        query = query.where(problems.c.gateway != "", sa.not_(sa.func.coalesce(known & seen, sa.false())))
        return self._database.transaction(
            lambda tx: [(row[0], row[1]) for row in tx.execute(query.distinct().limit(limit))]
        )


def _repeated(tx: sa.Connection, conditions: Sequence[Any]) -> Mapping[str, int]:
    """Return by how many the problems of each name are more than the gateways that have it."""
    keys = (problems.c.code, problems.c.tenant, problems.c.gateway)
    several = sa.select(*keys, (sa.func.count() - 1).label("more")).where(*conditions, problems.c.gateway != "")
    found = several.group_by(*keys).having(sa.func.count() > 1).subquery()
    query = sa.select(found.c.code, sa.func.sum(found.c.more)).group_by(found.c.code)
    return {row[0]: int(row[1]) for row in tx.execute(query)}


def _of_hubs(tx: sa.Connection, conditions: Sequence[Any]) -> Mapping[str, tuple[int, int]]:
    """Return the number of problems of hubs with each name, and of these hubs."""
    columns = (problems.c.code, sa.func.count(), sa.func.count(sa.distinct(problems.c.hub)))
    of_hub = (problems.c.tenant == "", problems.c.gateway == "")
    query = sa.select(*columns).where(*of_hub, *conditions).group_by(problems.c.code)
    return {row[0]: (row[1], row[2]) for row in tx.execute(query)}


def _away(tx: sa.Connection, conditions: Sequence[Any]) -> Mapping[str, int]:
    """Return the number of gateways with problems of each name that are not connected."""
    away = (gateways.c.connected == sa.false(), gateways.c.forgotten_at.is_(None))
    each = sa.select(problems.c.code, problems.c.tenant, problems.c.gateway).distinct()
    found = each.select_from(gateways.join(problems, _SAME)).where(*away, *conditions).subquery()
    query = sa.select(found.c.code, sa.func.count()).group_by(found.c.code)
    return {row[0]: row[1] for row in tx.execute(query)}


def _places(tx: sa.Connection, conditions: Sequence[Any], code: str, most: int) -> list[PlacedProblem]:
    """Return the first places of a name."""
    if not most:
        return []
    rows = tx.execute(_PLACES.where(*conditions, problems.c.code == code).limit(most))
    return [PlacedProblem(*row) for row in rows]


def _conditions(wanted: ProblemFilter) -> Iterable[Any]:
    if wanted.tenant is not None:
        yield problems.c.tenant == wanted.tenant
    for name in ("gateway", "severity", "code"):
        if value := getattr(wanted, name):
            yield problems.c[name] == value
