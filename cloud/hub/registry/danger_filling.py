"""Filling of the columns of danger in rows that an older program has written: one hub of the registry does so.

Such rows are known by `figures_at` (`cloud.hub.registry.danger_columns`). After a migration all rows are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.danger_columns import IS_STALE, danger_change, danger_row
from cloud.hub.registry.database import Database
from cloud.hub.registry.hubs import HubState
from cloud.hub.registry.schema import gateways, hubs
from cloud.lake.faults import RegistryError

SCHEMA_WITH_FIGURES: Final = 36
"""Schema version of the first program that writes all columns."""
FILLED_AT_ONCE: Final = 500
"""Rows in one transaction, some 20 ms."""
SERVES: Final = (HubState.SERVING.value, HubState.DRAINING.value)

OlderHubs = frozenset[tuple[str, int, str]]
"""Hubs of older versions, the times they wrote, and their states. A hub that ends writes its last rows after its last
time, and has another state then."""


class _HubsNow(NamedTuple):
    older: OlderHubs
    filling: str | None
    """Hub that fills columns."""


@dataclass(slots=True)
class _Pass:
    """One way through all gateways by key."""

    older: OlderHubs
    place: Key | None = None
    """Last gateway."""
    left: bool = False
    """Some rows have changed during it, and need another pass."""


class DangerFilling:
    """Fills the columns of rows of older programs, for the thread that creates it. Landings go first: a transaction
    that conflicts with one is not repeated, but its rows are read again later."""

    def __init__(self, url: sa.URL, hub: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`hub`: writer id of this hub; `clock`: monotonic seconds."""
        self._database = Database(url)
        self._reading = Database(url, reading=True)
        """Reads on a connection of its own; on the other one they would conflict with each landing."""
        self._hub = hub
        self._clock = clock
        self._older: OlderHubs | None = None
        """Hubs of older versions when the last pass began that left nothing; None before."""
        self._pass: _Pass | None = None

    def close(self) -> None:
        """Close both connections."""
        self._reading.close()
        self._database.close()

    def fill(self, seconds: float) -> int:
        """Fill some columns within about this time; return the number of rows. One hub does so at a time: of those that
        serve and have the columns, the one with the least id. It reads no gateway while no older hub has written since
        it left nothing to do. Raises `RegistryError` if the registry cannot be read."""
        hubs_now = self._reading.transaction(_hubs_now)
        if self._hub != hubs_now.filling:
            self._pass = self._older = None
            return 0
        if self._pass is None:
            if hubs_now.older == self._older:
                return 0
            self._pass = _Pass(hubs_now.older)
        until_s, filled = self._clock() + seconds, 0
        while self._pass is not None:
            filled += self._fill_next(self._pass)
            if self._clock() >= until_s:
                break
        return filled

    def _fill_next(self, each: _Pass) -> int:
        """Fill the next rows of a pass."""
        rows = self._reading.transaction(partial(_unfilled, after=each.place))
        changed = 0
        if rows:
            try:
                changed = self._database.transaction(partial(_fill, rows=rows), attempts=1)
            except RegistryError:
                each.left = True
            each.left = each.left or changed < len(rows)
            each.place = rows[-1]["at_tenant"], rows[-1]["at_name"]
        if len(rows) < FILLED_AT_ONCE:
            self._older, self._pass = None if each.left else each.older, None
        return changed


def _hubs_now(tx: sa.Connection) -> _HubsNow:
    older, filling = set(), []
    for row in tx.execute(sa.select(hubs.c.id, hubs.c.seen_at, hubs.c.state, hubs.c.schema)):
        if (row.schema or 0) < SCHEMA_WITH_FIGURES:
            older.add((row.id, row.seen_at, row.state))
        elif row.state in SERVES:
            filling.append(row.id)
    return _HubsNow(frozenset(older), min(filling, default=None))


def _unfilled(tx: sa.Connection, *, after: Key | None) -> list[Mapping[str, Any]]:
    key = gateways.c.tenant, gateways.c.name
    behind = () if after is None else (sa.tuple_(*key) > sa.tuple_(*map(sa.literal, after)),)
    query = sa.select(*key, gateways.c.last_seen, gateways.c.observed).order_by(*key).limit(FILLED_AT_ONCE)
    found = tx.execute(query.where(IS_STALE, gateways.c.forgotten_at.is_(None), *behind))
    return [danger_row((row[0], row[1]), row[2], row[3]) for row in found]


def _fill(tx: sa.Connection, *, rows: Sequence[Mapping[str, Any]]) -> int:
    """Store the columns of rows that have not changed since they were read; return their number."""
    unchanged = (gateways.c.last_seen == sa.bindparam("at_last_seen", type_=sa.BigInteger), IS_STALE)
    return tx.execute(danger_change(*unchanged), rows).rowcount
