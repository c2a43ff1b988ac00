"""Lineages: the openings that each gateway's store has reported, and how far its logs have reached. They detect older
copies of a store."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import GatewayLineage
from cloud.hub.limits import LOGS_KEPT
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.packing import pack_checked, unpack_ends, unpack_openings
from cloud.hub.registry.schema import lineages
from cloud.lake.commits import GatewayStore

Reached = Mapping[GatewayStore, Mapping[int, int]]
"""Minimum ends of the logs of stores."""


class Lineages:
    """Lineages in the registry. For the registry's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reached: dict[GatewayStore, dict[int, int]] = {}
        database.rolled_back.append(self._reached.clear)

    def compare(self, store: GatewayStore, lineage: GatewayLineage) -> str | None:
        """Compare a gateway's store with its known lineage, in one transaction.

        Return None, and store the lineage, for the known store or its continuation. Return the last opening that both
        know, or an empty text, for an older copy. Raises `RegistryError`.
        """
        self._reached.pop(store, None)  # it reconnected, and may have been at another hub
        return self._database.transaction(lambda tx: self._compare(tx, store, lineage))

    @staticmethod
    def _compare(tx: sa.Connection, store: GatewayStore, lineage: GatewayLineage) -> str | None:
        mine = _row_of(store)
        row = tx.execute(sa.select(lineages.c.openings, lineages.c.ends).where(mine)).first()
        known = [] if row is None else unpack_openings(row.openings, store.gateway)
        if known and known[-1] not in lineage.openings:
            return next((opening for opening in reversed(lineage.openings) if opening in known), "")
        if row is not None and known and is_earlier_copy(known[-1], unpack_ends(row.ends, store.gateway), lineage):
            return known[-1]
        packed = msgspec.msgpack.encode(lineage.openings)
        if row is None:
            tx.execute(lineages.insert().values(**store._asdict(), openings=packed))
        elif known != lineage.openings:
            tx.execute(lineages.update().where(mine).values(openings=packed))
        return None

    def raise_minimum_ends(self, tx: sa.Connection, reached: Reached) -> dict[GatewayStore, dict[int, int]]:
        """Store the minimum ends of logs; return what `remember` gets after the commit."""
        whole = {store: self._known(tx, store) for store, ends in reached.items() if ends}
        moved = {store: found for store, known in whole.items() if (found := _moved(known, reached[store])) != known}
        if moved:
            rows = [{**_named(store), "ends": pack_checked(list(ends.items()))} for store, ends in moved.items()]
            execute_many(tx, _REACH, rows)
        return {**whole, **moved}

    def remember(self, reached: Mapping[GatewayStore, dict[int, int]]) -> None:
        """Update the cache after a successful transaction."""
        self._reached.update(reached)

    def _known(self, tx: sa.Connection, store: GatewayStore) -> dict[int, int]:
        """Return the known ends of a store's logs."""
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
    """Return the parameters of `_REACH` that select the row."""
    return {f"of_{name}": value for name, value in store._asdict().items()}


def _moved(known: dict[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return `known` with larger ends from `ends`, moved logs last; only the most recently moved logs are kept."""
    further = {log: end for log, end in ends.items() if end > known.get(log, 0)}
    whole = {**{log: end for log, end in known.items() if log not in further}, **further}
    for log in list(islice(whole, max(0, len(whole) - LOGS_KEPT))):
        del whole[log]  # the log that has not moved for the longest time
    return whole


def _row_of(store: GatewayStore) -> sa.ColumnElement[bool]:
    return sa.and_(*(lineages.c[name] == value for name, value in store._asdict().items()))


def is_earlier_copy(last: str, reached: Mapping[int, int], lineage: GatewayLineage) -> bool:
    """Return whether the store is a copy taken earlier: after its opening `last` the known store went beyond where this
    one ended at its next opening."""
    after = lineage.openings.index(last) + 1
    first = len(lineage.openings) - len(lineage.ends)
    following = next((ends for ends in lineage.ends[max(0, after - first) :] if ends is not None), None)
    return following is not None and any(end > following.get(log, 0) for log, end in reached.items())
