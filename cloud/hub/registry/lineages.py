"""Lineages: the openings that each gateway's store has reported, and how far its logs have reached. They detect older
copies of a store."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import GatewayLineage
from cloud.hub.registry.database import Database
from cloud.hub.registry.packing import unpack_ends, unpack_openings
from cloud.hub.registry.schema import lineages
from cloud.hub.registry.unfolded import UnfoldedCommits
from cloud.lake.commits import GatewayStore


class Lineages:
    """Lineages in the registry. For the registry's thread."""

    def __init__(self, database: Database, unfolded: UnfoldedCommits) -> None:
        self._database = database
        self._unfolded = unfolded

    def compare(self, store: GatewayStore, lineage: GatewayLineage) -> str | None:
        """Compare a gateway's store with its known lineage, in one transaction.

        Return None, and store the lineage, for the known store or its continuation. Return the last opening that both
        know, or an empty text, for an older copy. Raises `RegistryError`.
        """
        return self._database.transaction(lambda tx: self._compare(tx, store, lineage))

    def _compare(self, tx: sa.Connection, store: GatewayStore, lineage: GatewayLineage) -> str | None:
        self._unfolded.fold(tx, self._unfolded.naming(tx, {(store.tenant, store.gateway)}))
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


def _row_of(store: GatewayStore) -> sa.ColumnElement[bool]:
    return sa.and_(*(lineages.c[name] == value for name, value in store._asdict().items()))


def is_earlier_copy(last: str, reached: Mapping[int, int], lineage: GatewayLineage) -> bool:
    """Return whether the store is a copy taken earlier: after its opening `last` the known store went beyond where this
    one ended at its next opening."""
    after = lineage.openings.index(last) + 1
    first = len(lineage.openings) - len(lineage.ends)
    following = next((ends for ends in lineage.ends[max(0, after - first) :] if ends is not None), None)
    return following is not None and any(end > following.get(log, 0) for log, end in reached.items())
