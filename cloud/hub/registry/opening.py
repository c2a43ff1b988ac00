"""Opening of a registry's database, with its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import open_schema


class OpenRegistry(NamedTuple):
    """Open registry."""

    database: Database
    registry_id: str


def open_registry(url: sa.URL, begin: Callable[[sa.Connection], None] = lambda _tx: None) -> OpenRegistry:
    """Open a registry for the calling thread; create missing tables. `begin` is called in the same transaction.

    Raises `RegistryError`; then nothing stays open.
    """
    database = Database(url)

    def work(tx: sa.Connection) -> str:
        registry_id = open_schema(tx)
        begin(tx)
        return registry_id

    try:
        return OpenRegistry(database, database.open(work))
    except BaseException:
        database.close()
        raise
