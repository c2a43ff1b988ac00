"""Copies of the rows of a registry, taken at one time and restored later."""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.schema import metadata
from tests.contract.registry.conftest import Place


class RegistryCopy:
    """Rows of all tables of a registry."""

    def __init__(self, place: Place) -> None:
        self._engine = sa.create_engine(place.url, poolclass=sa.NullPool)
        with self._engine.begin() as tx:
            self._rows = {table: tx.execute(sa.select(table)).mappings().all() for table in metadata.sorted_tables}

    def restore(self) -> None:
        """Replace the rows with those of the copy."""
        with self._engine.begin() as tx:
            for table in reversed(metadata.sorted_tables):
                tx.execute(table.delete())
            for table, rows in self._rows.items():
                if rows:
                    keys = {column.name: column.key for column in table.columns}
                    tx.execute(table.insert(), [{keys[name]: value for name, value in row.items()} for row in rows])
