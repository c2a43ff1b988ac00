"""Columns by which the registry orders gateways by danger, from the observations of their hubs.

A hub writes them with the observations. A hub of an older version writes the observations and `last_seen` only, so that
`judged_at` is another time than `last_seen`. Such rows, and those of a registry that was migrated, are judged again by
the looks of newer hubs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.observed import danger_of
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import gateways, hubs

SCHEMA_WITH_DANGER: Final = 31
"""Schema version of the first program that writes the columns."""
JUDGED_AT_ONCE: Final = 500
"""Rows in one transaction, some 20 ms: a landing that changes one of them at the same time is repeated."""
JUDGED_IN_A_LOOK: Final = 10_000
"""Rows judged in one look at the registry: half a second after a migration, and 1.5 minutes for 100 000 gateways."""

_KEY: Final = (gateways.c.tenant == sa.bindparam("at_tenant"), gateways.c.name == sa.bindparam("at_name"))
_IS_JUDGED: Final = gateways.c.judged_at == gateways.c.last_seen


def still_judged(last_seen: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
    """Return the `judged_at` of a change of `last_seen` alone: the columns hold on, if they held before."""
    return sa.case((_IS_JUDGED, last_seen), else_=gateways.c.judged_at)


def seen_change(*mine: sa.ColumnElement[bool]) -> sa.Update:
    """Return the statement that stores when a gateway was seen; its values are `at_tenant`, `at_name` and
    `at_last_seen`."""
    last_seen = sa.bindparam("at_last_seen", type_=sa.BigInteger)
    return gateways.update().where(*_KEY, *mine).values(last_seen=last_seen, judged_at=still_judged(last_seen))


def danger_change(*mine: sa.ColumnElement[bool]) -> sa.Update:
    """Return the statement that stores observations with their columns; its values are those of `danger_row`.

    An end of the room that has moved a little stays: each report estimates it a little differently.
    """
    full_at = sa.bindparam("at_full_at", type_=sa.BigInteger)
    step = sa.bindparam("at_room_step_us", type_=sa.BigInteger)
    near = _IS_JUDGED & (sa.func.abs(gateways.c.full_at - full_at) < step)
    columns = ("last_seen", "observed", "refusing", "oldest_at", "waiting")
    return (
        gateways.update()
        .where(*_KEY, *mine)
        .values({name: sa.bindparam(f"at_{name}", type_=gateways.c[name].type) for name in columns})
        .values(full_at=sa.case((near, gateways.c.full_at), else_=full_at))
        .values(judged_at=sa.bindparam("at_last_seen", type_=sa.BigInteger))
    )


def danger_row(key: Key, last_seen: int, observed: str | None) -> Mapping[str, Any]:
    """Return the values of `danger_change`."""
    figures = {f"at_{name}": value for name, value in danger_of(observed)._asdict().items()}
    return {"at_tenant": key[0], "at_name": key[1], "at_last_seen": last_seen, "at_observed": observed, **figures}


class DangerColumns:
    """Judges the rows of older programs again. For the thread of both connections."""

    def __init__(self, database: Database, reading: Database) -> None:
        """`reading`: a connection that only reads; it would conflict with each landing otherwise."""
        self._database = database
        self._reading = reading
        self._older: frozenset[tuple[str, int, str]] | None = None
        """Hubs of older versions, the times they wrote, and their states, when the last row was judged; None before.
        A hub that ends writes its last rows after its last time, and has another state then."""

    def judge(self) -> int:
        """Judge rows that are not judged; return their number. Nothing is read while no older hub has written since
        there were none. Raises `RegistryError`."""
        older = self._reading.transaction(_older_hubs)
        if older == self._older:
            return 0
        judged = 0
        while judged < JUDGED_IN_A_LOOK:
            rows = self._reading.transaction(_unjudged)
            changed = self._database.transaction(partial(_judge, rows=rows)) if rows else 0
            judged += changed
            if changed == len(rows) < JUDGED_AT_ONCE:
                self._older = older
                break
            if not changed:  # all have changed since they were read
                break
        return judged


def _older_hubs(tx: sa.Connection) -> frozenset[tuple[str, int, str]]:
    older = hubs.c.schema.is_(None) | (hubs.c.schema < SCHEMA_WITH_DANGER)
    found = tx.execute(sa.select(hubs.c.id, hubs.c.seen_at, hubs.c.state).where(older))
    return frozenset((row[0], row[1], row[2]) for row in found)


def _unjudged(tx: sa.Connection) -> list[Mapping[str, Any]]:
    query = sa.select(gateways.c.tenant, gateways.c.name, gateways.c.last_seen, gateways.c.observed)
    found = tx.execute(query.where(~_IS_JUDGED, gateways.c.forgotten_at.is_(None)).limit(JUDGED_AT_ONCE))
    return [danger_row((row[0], row[1]), row[2], row[3]) for row in found]


def _judge(tx: sa.Connection, *, rows: Sequence[Mapping[str, Any]]) -> int:
    """Store the columns of rows that have not changed since they were read; return their number. A changed one is read
    again."""
    unchanged = (gateways.c.last_seen == sa.bindparam("at_last_seen"), ~_IS_JUDGED)
    return tx.execute(danger_change(*unchanged), rows).rowcount
