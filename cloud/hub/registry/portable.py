"""All rows of a registry, independent of its database: for backups, and for a move to another database.

Rows are read in one transaction, and written in one into an empty database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RegistryForeign, RegistryRefused, RegistryTooNew
from cloud.hub.registry.known_numbers import leave_known_numbers
from cloud.hub.registry.schema import (
    SCHEMA_VERSION,
    RegistryState,
    mark,
    metadata,
    record_revision,
    registry_marks,
    schema_revisions,
    schema_version,
    signature_requests,
    state_of,
    version_of,
)

T = TypeVar("T")

ROWS: Final = 500
"""Rows that are read and written at a time, some 100 kB."""
KEPT_BY_EACH: Final = frozenset({schema_version, schema_revisions, registry_marks, signature_requests})
"""Tables about a database itself, and requests for signatures, which hubs wait for in seconds: answers have hashes of
passwords."""


class RegistryPart(NamedTuple):
    """Some rows of a table."""

    table: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def read_registry(url: sa.URL, use: Callable[[str, Iterator[RegistryPart]], T], *, writing: bool = False) -> T:
    """Call `use` with the id and all rows of a registry, in one transaction. Raises `RegistryError`.

    `writing`: nothing else changes the registry until `use` returns.
    """
    database = Database(url, reading=not writing)

    def work(tx: sa.Connection) -> T:
        return use(require_present(tx, database.where), parts_of(tx))

    try:
        return database.transaction(work)
    finally:
        database.close()


def require_present(tx: sa.Connection, where: str) -> str:
    """Return the id of a registry with the tables of this program. Raises `RegistryError`."""
    version = version_of(tx)
    if version is None:
        raise RegistryForeign(f"{where} has no registry: name the one of a hub that has run")
    if version > SCHEMA_VERSION:
        raise RegistryTooNew(f"{where} has schema version {version}: use the version of the program that made it")
    if version < SCHEMA_VERSION:
        raise RegistryRefused(f"{where} has schema version {version}: migrate it first: waypost hub migrate")
    return str(tx.execute(sa.select(schema_version.c.registry_id)).scalar_one())


def parts_of(tx: sa.Connection) -> Iterator[RegistryPart]:
    """Yield all rows, those that others refer to first."""
    for table in metadata.sorted_tables:
        if table not in KEPT_BY_EACH:
            columns = [str(column.name) for column in table.columns]
            found = tx.execute(sa.select(table).execution_options(yield_per=ROWS))
            yield from (
                RegistryPart(str(table.name), columns, [list(row) for row in part]) for part in found.partitions()
            )


def write_registry(
    database: Database,
    registry_id: str,
    schema: int,
    parts: Iterable[RegistryPart],
    *,
    replace: bool = False,
    is_move: bool = False,
) -> Mapping[str, int]:
    """Write a registry into an empty database; return the rows of each table, as counted there. It is marked as
    arriving: no hub uses it until `finish_arrival`.

    `replace`: what is there is removed. `is_move`: the original ends with this copy. What arrives again for the same id
    replaces its unfinished arrival. Raises `RegistryError`.
    """
    if schema > SCHEMA_VERSION:
        raise RegistryTooNew(
            f"the copy has schema version {schema}, this program {SCHEMA_VERSION}: use the version that made it"
        )

    begun: list[bool] = []

    def work(tx: sa.Connection) -> Mapping[str, int]:
        if begun:  # the database has aborted the first attempt, which has taken some of the parts
            raise RegistryRefused(f"{database.where} was changed by others while it was written: try again")
        begun.append(True)
        before = state_of(tx)
        if before is not None and not replace and before != (RegistryState.ARRIVING, registry_id):
            raise RegistryForeign(f"{database.where} has a registry already: name an empty database")
        if before is not None or replace:
            metadata.drop_all(tx)
        metadata.create_all(tx)
        sent: Counter[str] = Counter()
        for part in parts:
            sent[part.table] += _write(tx, part)
        tx.execute(schema_version.insert().values(version=SCHEMA_VERSION, registry_id=registry_id))
        record_revision(tx)
        mark(tx, RegistryState.ARRIVING, "")
        counts = {name: _count(tx, metadata.tables[name]) for name in sent if name in metadata.tables}
        wrong = [name for name, count in counts.items() if count != sent[name]]
        if wrong:
            raise RegistryRefused(f"table {wrong[0]} has {counts[wrong[0]]} rows after {sent[wrong[0]]} were written")
        leave_known_numbers(tx, is_move=is_move)
        database.dialect.continue_numbers(tx, metadata.sorted_tables)
        return counts

    return database.open(work)


def finish_arrival(database: Database) -> None:
    """Let hubs use the registry. Raises `RegistryError`."""
    database.transaction(lambda tx: tx.execute(registry_marks.delete()))


def _write(tx: sa.Connection, part: RegistryPart) -> int:
    """Write some rows. A table or column that this program does not have any more is left out."""
    table = metadata.tables.get(part.table)
    if table is None or not part.rows:
        return 0
    keys = {column.name: column.key for column in table.columns}
    known = [(place, keys[name]) for place, name in enumerate(part.columns) if name in keys]
    tx.execute(table.insert(), [{key: row[place] for place, key in known} for row in part.rows])
    return len(part.rows)


def _count(tx: sa.Connection, table: sa.Table) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
