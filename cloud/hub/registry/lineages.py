"""Lineages: which openings each gateway's store has told of, and how far its logs are known to have gone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import Lineage
from cloud.hub.limits import LOGS_KEPT
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.packing import pack_checked, unpack_ends, unpack_openings
from cloud.hub.registry.schema import lineages
from cloud.lake.commits import GatewayStore

Reached = Mapping[GatewayStore, Mapping[int, int]]
"""How far the logs of stores reach at least."""


class Lineages:
    """For the registry's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reached: dict[GatewayStore, dict[int, int]] = {}
        database.rolled_back.append(self._reached.clear)

    def compare(self, store: GatewayStore, told: Lineage) -> str | None:
        """Compare a gateway's store with what is known of it, in one transaction. None, and it is remembered, when it
        is the one known, or what became of that; else it is an older copy: the last opening both know, or an empty
        text. Raises `RegistryError`."""
        self._reached.pop(store, None)  # it has connected anew, and may have been at another hub
        return self._database.transaction(lambda tx: self._compare(tx, store, told))

    @staticmethod
    def _compare(tx: sa.Connection, store: GatewayStore, told: Lineage) -> str | None:
        mine = _row_of(store)
        row = tx.execute(sa.select(lineages.c.openings, lineages.c.ends).where(mine)).first()
        known = [] if row is None else unpack_openings(row.openings, store.gateway)
        if known and known[-1] not in told.openings:
            return next((opening for opening in reversed(told.openings) if opening in known), "")
        if row is not None and known and went_further(known[-1], unpack_ends(row.ends, store.gateway), told):
            return known[-1]
        packed = msgspec.msgpack.encode(told.openings)
        if row is None:
            tx.execute(lineages.insert().values(**store._asdict(), openings=packed))
        elif known != told.openings:
            tx.execute(lineages.update().where(mine).values(openings=packed))
        return None

    def reach(self, tx: sa.Connection, reached: Reached) -> dict[GatewayStore, dict[int, int]]:
        """Write how far the logs of stores reach at least; returns what is to be remembered after the commit."""
        whole = {store: self._known(tx, store) for store, ends in reached.items() if ends}
        moved = {store: found for store, known in whole.items() if (found := _moved(known, reached[store])) != known}
        if moved:
            rows = [{**_named(store), "ends": pack_checked(list(ends.items()))} for store, ends in moved.items()]
            execute_many(tx, _REACH, rows)
        return {**whole, **moved}

    def remember(self, reached: Mapping[GatewayStore, dict[int, int]]) -> None:
        """The transaction has ended well."""
        self._reached.update(reached)

    def _known(self, tx: sa.Connection, store: GatewayStore) -> dict[int, int]:
        """How far it is known to reach."""
        known = self._reached.get(store)
        if known is None:
            row = tx.execute(sa.select(lineages.c.ends).where(_row_of(store))).first()
            known = {} if row is None else unpack_ends(row.ends, store.gateway)
        return known


_REACH: Final = (
    lineages.update()
    .where(*(lineages.c[name] == sa.bindparam(f"of_{name}") for name in GatewayStore._fields))
    .values(ends=sa.bindparam("ends"))
)


def _named(store: GatewayStore) -> dict[str, str]:
    """The parameters of `_REACH` that say which row."""
    return {f"of_{name}": value for name, value in store._asdict().items()}


def _moved(known: dict[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """`known` with the logs that reach further as `ends` says: these last, and of many those moved last."""
    further = {log: end for log, end in ends.items() if end > known.get(log, 0)}
    whole = {**{log: end for log, end in known.items() if log not in further}, **further}
    for log in list(islice(whole, max(0, len(whole) - LOGS_KEPT))):
        del whole[log]  # the one that was moved longest ago
    return whole


def _row_of(store: GatewayStore) -> sa.ColumnElement[bool]:
    return sa.and_(*(lineages.c[name] == value for name, value in store._asdict().items()))


def went_further(last: str, reached: Mapping[int, int], told: Lineage) -> bool:
    """True when the store went on, after its opening `last`, beyond where it ended at the next one it tells of: then
    this is a copy, taken before that."""
    after = told.openings.index(last) + 1
    first = len(told.openings) - len(told.ends)
    following = next((ends for ends in told.ends[max(0, after - first) :] if ends is not None), None)
    return following is not None and any(end > following.get(log, 0) for log, end in reached.items())
