"""Writer: identity of a hub that writes into a registry.

A writer numbers its commits under an id that is stored in the hub's data directory; Delta tables record it. Two hubs
with one id (a copied data directory) would take each other's commits for their own. So each start is counted, and only
the latest one may write.
"""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.faults import WriterReplaced
from cloud.hub.registry.schema import OLDER_WRITER, writers


class RegistryWriter:
    """One start of a writer."""

    def __init__(self, writer_id: str) -> None:
        self.id = writer_id
        self.own = frozenset({writer_id, OLDER_WRITER})
        """Ids of this writer's commits: its own, and those of versions that had no writers."""
        self.lake: str | None = None
        """Lake that it writes into; None before `write_to`."""
        self._starts = 0

    def start(self, tx: sa.Connection) -> None:
        """Count the start; earlier starts under this id are replaced."""
        found = tx.execute(sa.select(writers.c.starts).where(writers.c.id == self.id)).scalar_one_or_none()
        self._starts = (found or 0) + 1
        if found is None:
            tx.execute(writers.insert().values(id=self.id, starts=self._starts))
        else:
            tx.execute(writers.update().where(writers.c.id == self.id).values(starts=self._starts))

    def repair(self, tx: sa.Connection) -> bool:
        """Record this start again in a registry that does not know it, or its lake: it is an older copy. Return whether
        it is. Other hubs settle open commits of writers of their lake only."""
        mine = writers.c.id == self.id
        found = tx.execute(sa.select(writers.c.starts, writers.c.lake).where(mine)).one_or_none()
        if found is None:
            tx.execute(writers.insert().values(id=self.id, starts=self._starts, lake=self.lake))
            return True
        if found.starts >= self._starts and self.lake in (None, found.lake):
            return False
        values = {"starts": max(found.starts, self._starts), "lake": self.lake or found.lake}
        tx.execute(writers.update().where(mine).values(values))
        return True

    def write_to(self, tx: sa.Connection, lake: str) -> None:
        """Record the lake of this writer."""
        tx.execute(writers.update().where(writers.c.id == self.id).values(lake=lake))

    def others_of_lake(self, tx: sa.Connection) -> set[str]:
        """Return the other writers of this writer's lake, running or not."""
        found = tx.execute(sa.select(writers.c.id).where(writers.c.lake == self.lake)).scalars()
        return set(found) - self.own if self.lake is not None else set()

    @property
    def is_latest(self) -> sa.ColumnElement[bool]:
        """Condition of a statement: this start is the latest one. Where it does not hold, `require` says why."""
        found = sa.select(writers.c.starts).where(writers.c.id == self.id).scalar_subquery()
        return found == self._starts

    def require(self, tx: sa.Connection) -> None:
        """Check that this start is the latest one, in each transaction about commits. Raises `WriterReplaced`."""
        found = tx.execute(sa.select(writers.c.starts).where(writers.c.id == self.id)).scalar_one_or_none()
        if found != self._starts:
            raise WriterReplaced(
                "another hub has started with the writer id of this one, from a copy of its data directory; "
                "stop one of the two, and remove the file `writer` from the copy"
            )
