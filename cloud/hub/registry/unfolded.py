"""Log of commits: what landed commits add to marks, totals and lineages, until it is folded into those rows.

A landing writes one row, whatever the number of its gateways: the commit with its ranges. It stays *prepared*, and the
version that it got in the lake shows that it has landed. Every few minutes, and when one of its gateways connects to
another hub or again, all of them are folded: added to the rows of marks, gateways and lineages, and *confirmed*. One
transaction does both, so each commit counts once, whichever hub folds it.

The commits of a writer are folded in their order. So the rows of a gateway change as its hub has planned, also where
holes are closed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.commit_states import CONFIRMED, LEDGER, PREPARED
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.faults import CommitDamaged
from cloud.hub.registry.marks import add_landed
from cloud.hub.registry.packing import unpack_ranges
from cloud.hub.registry.reached import raise_minimum_ends, unpack_reached
from cloud.hub.registry.schema import PARAMETERS_MAX, commits, gateways, ledgered
from cloud.lake.commits import Prepared
from cloud.lake.limits import COMMITS_KEPT
from cloud.lake.sequences import SequenceRange

Name = tuple[str, str, int]
"""(writer, table, commit)."""


class OpenCommit(NamedTuple):
    """Commit that is not folded yet."""

    writer: str
    table: str
    commit: int
    version: int | None
    """Version of the table that has it; None while its outcome is unknown."""

    @property
    def name(self) -> Name:
        return self[:3]


class UnfoldedCommits:
    """Open commits of all hubs. For the registry's thread; methods with `tx` run within a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._named: dict[Name, array[int] | None] = {}
        """Hashes of the gateways that each open commit names; None for a damaged one. What a commit names never
        changes, unless another server of the database answers."""
        self._connection = 0
        """Connection of the database that the names were read on."""

    def naming(self, tx: sa.Connection, who: Iterable[Key]) -> list[OpenCommit]:
        """Return the open commits of all hubs that name one of these gateways, those of each hub in their order. A
        damaged one may name any."""
        if self._connection != self._database.connections:
            self._named.clear()
            self._connection = self._database.connections
        found = [OpenCommit(*row) for row in tx.execute(_OPEN).all()]
        new = [each for each in found if each.name not in self._named]
        for row in self._rows(tx, new):
            ranges = unpack_ranges(row.ranges)
            if ranges is None:
                self._named[_name(row)] = None
                continue
            reached = unpack_reached(row.reached, row.id)
            named = {(store.tenant, store.gateway) for store in reached} | gateways_of(ranges)
            self._named[_name(row)] = array("q", map(hash, named))
        there = {each.name for each in found}
        for name in self._named.keys() - there:
            del self._named[name]
        hashes = {hash(key) for key in who}
        damaged = [name for name, named in self._named.items() if named is None]
        asked = [each for each in found if self._is_named(each.name, hashes)]
        for name in damaged:
            del self._named[name]  # it may be repaired
        return asked

    def _is_named(self, name: Name, hashes: set[int]) -> bool:
        named = self._named[name]
        return named is None or not hashes.isdisjoint(named)

    @staticmethod
    def of_writers(tx: sa.Connection, writers: Collection[str]) -> list[OpenCommit]:
        """Return the open commits of these writers, those of each in their order."""
        mine = _OPEN.where(commits.c.writer.in_(sorted(writers)))
        return [OpenCommit(*row) for row in tx.execute(mine).all()]

    def prepared(self, tx: sa.Connection, of: Sequence[OpenCommit]) -> list[Prepared]:
        """Return these commits with their ranges, those of each hub in their order. Raises `CommitDamaged`."""
        return sorted(Prepared(*_name(row), _ranges(row)) for row in self._rows(tx, of))

    @staticmethod
    def fold(tx: sa.Connection, of: Iterable[OpenCommit]) -> None:
        """Fold the landed ones of these commits, with the earlier ones of the same writer and table. Of those with an
        unknown outcome, the ends of logs count: gateways have shown them."""
        last: dict[tuple[str, str], int] = {}
        for each in of:
            at = each.writer, each.table
            last[at] = max(each.commit, last.get(at, 0))
        for (writer, table), commit in sorted(last.items()):
            _fold(tx, (commits.c.writer == writer, commits.c.table_name == table, commits.c.id <= commit))
            kept = (commits.c.state == PREPARED) | (commits.c.id > commit - COMMITS_KEPT)
            tx.execute(commits.delete().where(commits.c.writer == writer, commits.c.table_name == table, ~kept))

    @staticmethod
    def _rows(tx: sa.Connection, of: Sequence[OpenCommit]) -> list[Any]:
        columns = (commits.c.writer, commits.c.table_name, commits.c.id)
        query = sa.select(*columns, commits.c.ranges, commits.c.reached, commits.c.version)
        at_once = PARAMETERS_MAX // len(columns)
        rows: list[Any] = []
        for start in range(0, len(of), at_once):
            names = [each.name for each in of[start : start + at_once]]
            rows += tx.execute(query.where(sa.tuple_(*columns).in_(names))).all()
        return rows


def gateways_of(ranges: Iterable[SequenceRange]) -> set[Key]:
    """Return the gateways of these ranges."""
    return {(moved.tenant, moved.gateway) for moved in ranges}


_OPEN: Final = (
    sa.select(commits.c.writer, commits.c.table_name, commits.c.id, commits.c.version)
    .where(commits.c.state == PREPARED)
    .order_by(commits.c.writer, commits.c.table_name, commits.c.id)
)
_LANDED: Final = (commits.c.state == PREPARED) & commits.c.version.is_not(None)

_COUNT: Final = (
    gateways.update()
    .where(gateways.c.tenant == sa.bindparam("whose"), gateways.c.name == sa.bindparam("called"))
    .values(landed=gateways.c.landed + sa.bindparam("more"))
)


def _fold(tx: sa.Connection, mine: Sequence[sa.ColumnElement[bool]]) -> None:
    """Fold the commits of one writer and table. An older program confirms commits and leaves the ends of logs."""
    query = sa.select(commits).where(*mine, _LANDED | commits.c.reached.is_not(None)).order_by(commits.c.id)
    rows = tx.execute(query).all()
    if not rows:
        return
    raise_minimum_ends(tx, [unpack_reached(row.reached, row.id) for row in rows])
    landed = [row for row in rows if row.state == PREPARED and row.version is not None]
    ranges = [moved for row in landed for moved in _ranges(row)]
    if ranges and rows[0].table_name == LEDGER:
        tx.execute(ledgered.insert(), [moved._asdict() for moved in ranges])
    elif ranges:
        add_landed(tx, ranges)
        _count(tx, ranges)
    tx.execute(commits.update().where(*mine, _LANDED).values(state=CONFIRMED, ranges=b"", reached=None))
    tx.execute(commits.update().where(*mine, commits.c.reached.is_not(None)).values(reached=None))


def _name(row: Any) -> Name:
    return row.writer, row.table_name, row.id


def _ranges(row: Any) -> list[SequenceRange]:
    """Return the ranges of a commit. Raises `CommitDamaged`."""
    ranges = unpack_ranges(row.ranges)
    if ranges is None:
        raise CommitDamaged(_name(row), row.version)
    return ranges


def _count(tx: sa.Connection, ranges: Sequence[SequenceRange]) -> None:
    """Add landed messages to the totals of their gateways."""
    rows: Counter[Key] = Counter()
    for moved in ranges:
        rows[moved.tenant, moved.gateway] += moved.last - moved.first + 1
    more = [{"whose": tenant, "called": name, "more": messages} for (tenant, name), messages in rows.items()]
    execute_many(tx, _COUNT, more)
