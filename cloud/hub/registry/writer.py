"""This hub as one of those that write into a registry.

A writer has an id, kept in the hub's data directory, under which it numbers its commits; Delta tables know them by it.
Two hubs under one id (a copied data directory) would take each other's commits for their own, so each start is counted,
and a hub that is not the latest to have started under its id changes nothing any more.
"""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.faults import WriterReplaced
from cloud.hub.registry.schema import OLDER_WRITER, writers


class Writer:
    """One start of one writer."""

    def __init__(self, writer_id: str) -> None:
        self.id = writer_id
        self.settles = frozenset({writer_id, OLDER_WRITER})
        """The writers whose commits this one confirms or forgets: itself, and those it has taken over from."""
        self._starts = 0

    def start(self, tx: sa.Connection) -> None:
        """From now on whoever started under this id before is replaced."""
        found = tx.execute(sa.select(writers.c.starts).where(writers.c.id == self.id)).scalar_one_or_none()
        self._starts = (found or 0) + 1
        if found is None:
            tx.execute(writers.insert().values(id=self.id, starts=self._starts))
        else:
            tx.execute(writers.update().where(writers.c.id == self.id).values(starts=self._starts))

    def write_to(self, tx: sa.Connection, lake: str) -> frozenset[str]:
        """This writer writes to that lake. Returns those who did before: one hub at a time holds a data directory, so
        they have ended, and what they left open is for this one to settle."""
        tx.execute(writers.update().where(writers.c.id == self.id).values(lake=lake))
        return frozenset(tx.execute(sa.select(writers.c.id).where(writers.c.lake == lake)).scalars())

    def require(self, tx: sa.Connection) -> None:
        """In each transaction about commits. Raises `WriterReplaced`."""
        found = tx.execute(sa.select(writers.c.starts).where(writers.c.id == self.id)).scalar_one_or_none()
        if found != self._starts:
            raise WriterReplaced(
                "another hub has started with the writer id of this one, from a copy of its data directory; "
                "stop one of the two, and remove the file `writer` from the copy"
            )
