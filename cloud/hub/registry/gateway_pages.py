"""Pages of gateways in the registry, by tenant and name: their configurations, and their labels.

A page begins behind a name, so it stays right while gateways come and go, also the one of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.labels import LabelSelector, Requirement
from cloud.hub.registry.configurations import ConfigurationRecord, configuration_of
from cloud.hub.registry.database import Database
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.names import known_names
from cloud.hub.registry.schema import configured, labels


class ConfigurationPage(NamedTuple):
    """Some gateways with a wanted version or a report."""

    rows: Sequence[ConfigurationRecord]
    total: int
    """Number of those on all pages."""
    configured: int
    """Number of gateways with a wanted version."""


_COLUMNS: Final = [configured.c[name] for name in ConfigurationRecord._fields]
_PLACE: Final = sa.tuple_(configured.c.tenant, configured.c.gateway)
_COUNT: Final = sa.select(sa.func.count()).select_from(configured)


class GatewayPages:
    """Pages for the thread that opened the database. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def configurations(self, tenant: str | None, after: Key | None, limit: int) -> ConfigurationPage:
        """Return gateways with a wanted version or a report, of one tenant or all, behind `after`."""
        mine = _of(tenant)
        known = (*mine, (configured.c.wanted > 0) | configured.c.reported_at.is_not(None))
        query = sa.select(*_COLUMNS).where(*known, *_behind(after)).order_by(configured.c.tenant, configured.c.gateway)

        def work(tx: sa.Connection) -> ConfigurationPage:
            rows = [configuration_of(row) for row in tx.execute(query.limit(limit))]
            return ConfigurationPage(rows, _count(tx, *known), _count(tx, *mine, configured.c.wanted > 0))

        return self._database.transaction(work)

    def unconfirmed(self, tenant: str | None, after: Key | None, limit: int) -> ConfigurationPage:
        """Return gateways that do not have their wanted version, behind `after`. Their reports tell, so the reports of
        all gateways with a wanted version are read: some 40 ms for 10 000."""
        wanted = (*_of(tenant), configured.c.wanted > 0)
        later = sa.literal(1) if after is None else sa.case((_behind(after)[0], 1), else_=0)
        query = sa.select(*_COLUMNS, later).where(*wanted).order_by(configured.c.tenant, configured.c.gateway)

        def work(tx: sa.Connection) -> ConfigurationPage:
            every = tx.execute(query).all()
            found = list(_unconfirmed(every))
            rows = [record for record, is_later in found if is_later]
            return ConfigurationPage(rows[:limit], len(found), len(every))

        return self._database.transaction(work)

    def labels(self, tenant: str, selector: LabelSelector | None, after: str, limit: int) -> dict[str, dict[str, str]]:
        """Return the labels of known gateways of a tenant that `selector` chooses, if given, behind the name `after`.
        Gateways without labels have none."""

        def conditions(name: sa.ColumnElement[str]) -> Iterator[sa.ColumnElement[bool]]:
            yield name > after
            yield from (holds(each, tenant, name) for each in (selector.requirements if selector else ()))

        def work(tx: sa.Connection) -> dict[str, dict[str, str]]:
            names = known_names(tx, tenant, conditions, limit)
            found = labels_of(tx, tenant, names)
            return {name: found.get(name, {}) for name in names}

        return self._database.transaction(work)


def _of(tenant: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if tenant is None else (configured.c.tenant == tenant,)


def _behind(after: Key | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if after is None else (sa.tuple_(*after) < _PLACE,)


def _count(tx: sa.Connection, *conditions: sa.ColumnElement[bool]) -> int:
    return int(tx.execute(_COUNT.where(*conditions)).scalar_one())


class _Report(msgspec.Struct):
    """Parts of a report that tell whether a version is confirmed."""

    version: int = 0
    trying: int | None = None
    failure: Any = None
    system: Any = None


_decode_report: Final = msgspec.json.Decoder(_Report).decode


def _unconfirmed(rows: Iterable[Any]) -> Iterator[tuple[ConfigurationRecord, int]]:
    """Yield the records that are not confirmed, with whether each is behind the place of the page."""
    for row in rows:
        if row.report is not None:
            try:
                report = _decode_report(row.report)
            except msgspec.MsgspecError:  # an older version stored an invalid one
                report = _Report()
            if report.version == row.wanted and report.trying is report.failure is report.system is None:
                continue  # the usual case, without a record: most gateways have their version
        record = configuration_of(row[:-1])
        if record.state != "confirmed":
            yield record, row[-1]


def holds(
    requirement: Requirement, tenant: str | sa.ColumnElement[str], gateway: sa.ColumnElement[str]
) -> sa.ColumnElement[bool]:
    """Return the condition that the labels of a gateway meet a requirement."""
    mine = (labels.c.tenant == tenant, labels.c.gateway == gateway, labels.c.key == requirement.key)
    value = () if requirement.value is None else (labels.c.value == requirement.value,)
    there = sa.exists().where(*mine, *value)
    return there if requirement.wanted else ~there
