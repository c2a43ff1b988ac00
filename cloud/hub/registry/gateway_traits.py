"""Search of gateways by version, by their open problems, and by when they were seen last.

Versions and problems have indexes. So a search for something rare reads the few gateways that have it; the others go
along the order of the list until a page is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.sql.visitors import replacement_traverse

from cloud.hub.registry.schema import gateways, problems
from cloud.hub.version_rank import UNRANKED, rank_version

RARE_MAX: Final = 800
"""Gateways up to which a trait is rare: they are read and sorted in some 25 ms. Of 100 000 gateways a page reads some
6 000 along its order until it has 50 with a trait that is less rare, in some 30 ms."""
_KEY: Final = sa.tuple_(gateways.c.tenant, gateways.c.name)


class GatewayTraits(NamedTuple):
    """Traits that gateways have to have; None and empty values match everything. Times are UTC microseconds."""

    version: str = ""
    """Exact version of the program."""
    below_rank: int | None = None
    """Rank of a version: only gateways with an older one (`cloud.hub.version_rank`)."""
    problem: str = ""
    """Name of an open problem."""
    severity: str = ""
    """Severity of an open problem, of that one if both are given."""
    seen_before: int | None = None
    """Only gateways that are not connected and were seen before this time."""
    seen_after: int | None = None
    """Only gateways that are connected, or were seen at this time or later."""

    @property
    def searches(self) -> bool:
        """Return whether any trait is wanted."""
        return self != GatewayTraits()

    def terms(self) -> Iterator[sa.ColumnElement[bool]]:
        """Yield the terms of rows of gateways that have them."""
        yield from self._version_terms()
        if self._problem_terms():
            mine = (problems.c.tenant == gateways.c.tenant, problems.c.gateway == gateways.c.name)
            yield sa.exists().where(*mine, *self._problem_terms())
        if self.seen_before is not None:
            yield gateways.c.connected == sa.false()
            yield gateways.c.last_seen < self.seen_before
        if self.seen_after is not None:
            yield (gateways.c.connected == sa.true()) | (gateways.c.last_seen >= self.seen_after)

    def indexed(self, tenant: str | None) -> Iterator[sa.Select[tuple[str, str]]]:
        """Yield a query for each trait with an index: tenants and names of the gateways that have it."""
        if terms := list(self._version_terms()):
            mine = () if tenant is None else (gateways.c.tenant == tenant,)
            keys = sa.select(gateways.c.tenant, gateways.c.name)
            yield keys.where(gateways.c.forgotten_at.is_(None), *mine, *terms)
        if terms := self._problem_terms():
            mine = () if tenant is None else (problems.c.tenant == tenant,)
            keys = sa.select(problems.c.tenant, problems.c.gateway).distinct()
            yield keys.where(problems.c.gateway != "", *mine, *terms)  # that of a hub has no gateway

    def _version_terms(self) -> Iterator[sa.ColumnElement[bool]]:
        rank, version = gateways.c.version_rank, gateways.c.version
        if self.version:
            yield from (rank == rank_version(self.version), version == self.version)
        if self.below_rank is not None:
            yield from (rank > UNRANKED, rank < self.below_rank)

    def _problem_terms(self) -> list[sa.ColumnElement[bool]]:
        wanted = {problems.c.code: self.problem, problems.c.severity: self.severity}
        return [column == value for column, value in wanted.items() if value]


ANY_TRAITS: Final = GatewayTraits()


def rare_gateways(tx: sa.Connection, traits: GatewayTraits, tenant: str | None) -> sa.Select[tuple[str, str]] | None:
    """Return the query of the keys of gateways with the rarest of some traits, if it is rare; otherwise None."""
    rarest, fewest = None, RARE_MAX + 1
    for query in traits.indexed(tenant):
        count = _count_to(tx, query, fewest)
        if count < fewest:
            rarest, fewest = query, count
    return rarest


def only(query: sa.Select[Any], keys: sa.Select[tuple[str, str]] | None) -> sa.Select[Any]:
    """Return a query of gateways that reads those with these keys, of `rare_gateways`; itself without any.

    The rows of the keys are a materialized part of the query, so SQLite, which has no statistics, does not go along the
    order of the list.
    """
    if keys is None:
        return query
    found = sa.select(gateways).where(_KEY.in_(keys)).cte("found").prefix_with("MATERIALIZED")

    def instead(element: Any) -> Any:
        if element is gateways:
            return found
        return found.c[element.name] if isinstance(element, sa.Column) and element.table is gateways else None

    return cast(sa.Select[Any], replacement_traverse(query, {}, lambda element, **_: instead(element)))


def count_gateways(tx: sa.Connection, traits: GatewayTraits, tenant: str | None, most: int) -> int | None:
    """Return the number of gateways with these traits, `most` at most, if one index answers it; otherwise None."""
    queries = list(traits.indexed(tenant))
    if len(queries) != 1 or traits.seen_before is not None or traits.seen_after is not None:
        return None
    return _count_to(tx, queries[0], most)


def _count_to(tx: sa.Connection, query: sa.Select[tuple[str, str]], most: int) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(query.limit(most).subquery())).scalar_one()
