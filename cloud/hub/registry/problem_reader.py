"""Pages of the problems in the registry: by name over the fleet, and the places of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import problems
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
    places: Sequence[PlacedProblem]
    """Some of them."""


_COLUMNS: Final = [problems.c[name] for name in PlacedProblem._fields]
_ORDER: Final = (problems.c.tenant, problems.c.gateway, problems.c.hub, problems.c.digest)
_RANKS: Final = {each.value: each.rank for each in Severity}


class ProblemReader:
    """Reads the problems of an existing registry, for the thread that creates it. It delays no writer. Every method is
    one transaction; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        self._database = Database(url, reading=True)

    def close(self) -> None:
        self._database.close()

    def groups(self, wanted: ProblemFilter, after: str, limit: int) -> tuple[list[ProblemGroup], int]:
        """Return problems by name, in its order, and the number of all names. `after`: last name of the page before."""
        conditions = list(_conditions(wanted))
        rank = sa.func.min(sa.case(_RANKS, value=problems.c.severity, else_=len(_RANKS)))
        columns = (problems.c.code, rank, sa.func.count(), sa.func.min(problems.c.since))
        query = sa.select(*columns).where(*conditions, problems.c.code > after).group_by(problems.c.code)
        names = sa.select(sa.func.count(sa.distinct(problems.c.code))).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[ProblemGroup], int]:
            rows = tx.execute(query.order_by(problems.c.code).limit(limit)).all()
            shown = _places(tx, conditions, [row[0] for row in rows])
            severities = [*_RANKS, ""]
            found = [ProblemGroup(row[0], severities[row[1]], row[2], row[3], shown[row[0]]) for row in rows]
            return found, tx.execute(names).scalar() or 0

        return self._database.transaction(work)

    def places(self, wanted: ProblemFilter, after: Place | None, limit: int) -> tuple[list[PlacedProblem], int]:
        """Return problems by place, and the number of all. `after`: last place of the page before."""
        conditions = list(_conditions(wanted))
        query = sa.select(*_COLUMNS).where(*conditions).order_by(*_ORDER).limit(limit)
        if after is not None:
            query = query.where(sa.tuple_(*_ORDER) > sa.tuple_(*map(sa.literal, after)))
        counting = sa.select(sa.func.count()).select_from(problems).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[PlacedProblem], int]:
            return [PlacedProblem(*row) for row in tx.execute(query)], tx.execute(counting).scalar() or 0

        return self._database.transaction(work)


def _places(tx: sa.Connection, conditions: Sequence[Any], codes: Sequence[str]) -> dict[str, list[PlacedProblem]]:
    """Return the first places of each of these names."""
    number = sa.func.row_number().over(partition_by=problems.c.code, order_by=_ORDER).label("number")
    ranked = sa.select(*_COLUMNS, number).where(*conditions, problems.c.code.in_(codes)).subquery()
    query = sa.select(*(ranked.c[name] for name in PlacedProblem._fields)).where(ranked.c.number <= PLACES_SHOWN_MAX)
    found: dict[str, list[PlacedProblem]] = {each: [] for each in codes}
    for row in tx.execute(query.order_by(ranked.c.code, ranked.c.number)):
        found[row.code].append(PlacedProblem(*row))
    return found


def _conditions(wanted: ProblemFilter) -> Iterable[Any]:
    if wanted.tenant is not None:
        yield problems.c.tenant == wanted.tenant
    for name in ("gateway", "severity", "code"):
        if value := getattr(wanted, name):
            yield problems.c[name] == value
