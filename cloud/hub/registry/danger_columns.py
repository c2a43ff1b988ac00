"""Columns by which the registry orders and searches gateways, from the observations of their hubs.

A hub writes them with the observations. A hub of an older version writes the observations and `last_seen` only, so that
`figures_at` is another time than `last_seen` (`cloud.hub.registry.danger_filling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.observed import danger_of
from cloud.hub.registry.schema import gateways

_KEY: Final = (gateways.c.tenant == sa.bindparam("at_tenant"), gateways.c.name == sa.bindparam("at_name"))
_MARKS: Final = (gateways.c.figures_at, gateways.c.judged_at)
"""Times for which the columns hold: those of this program, and those that programs of an older version know."""
_IS_JUDGED: Final = gateways.c.figures_at == gateways.c.last_seen
IS_STALE: Final = gateways.c.figures_at.is_distinct_from(gateways.c.last_seen)
"""The columns of a row may not be those of its observations."""


def still_judged(last_seen: sa.BindParameter[Any]) -> dict[str, sa.ColumnElement[Any]]:
    """Return the values of a change of `last_seen` alone that let the columns hold on, if they held before."""
    return {mark.name: sa.case((mark == gateways.c.last_seen, last_seen), else_=mark) for mark in _MARKS}


def seen_change(*mine: sa.ColumnElement[bool]) -> sa.Update:
    """Return the statement that stores when a gateway was seen; its values are `at_tenant`, `at_name` and
    `at_last_seen`."""
    last_seen = sa.bindparam("at_last_seen", type_=sa.BigInteger)
    return gateways.update().where(*_KEY, *mine).values(last_seen=last_seen, **still_judged(last_seen))


def danger_change(*mine: sa.ColumnElement[bool]) -> sa.Update:
    """Return the statement that stores observations with their columns; its values are those of `danger_row`.

    An end of the room that has moved a little stays: each report estimates it a little differently.
    """
    full_at = sa.bindparam("at_full_at", type_=sa.BigInteger)
    step = sa.bindparam("at_room_step_us", type_=sa.BigInteger)
    near = _IS_JUDGED & (sa.func.abs(gateways.c.full_at - full_at) < step)
    columns = ("last_seen", "observed", "refusing", "oldest_at", "waiting", "version", "version_rank")
    return (
        gateways.update()
        .where(*_KEY, *mine)
        .values({name: sa.bindparam(f"at_{name}", type_=gateways.c[name].type) for name in columns})
        .values(full_at=sa.case((near, gateways.c.full_at), else_=full_at))
        .values({mark.name: sa.bindparam("at_last_seen", type_=sa.BigInteger) for mark in _MARKS})
    )


def danger_row(key: Key, last_seen: int, observed: str | None) -> Mapping[str, Any]:
    """Return the values of `danger_change`."""
    figures = {f"at_{name}": value for name, value in danger_of(observed)._asdict().items()}
    return {"at_tenant": key[0], "at_name": key[1], "at_last_seen": last_seen, "at_observed": observed, **figures}
