"""Opens a registry's database, with the tables of this program in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import open_schema


class Opened(NamedTuple):
    """An open registry."""

    database: Database
    registry_id: str


def opened(url: sa.URL, begin: Callable[[sa.Connection], None] = lambda _tx: None) -> Opened:
    """Open it for the thread that calls, and make it where there is none. `begin` is called in the transaction that
    does so. Raises `RegistryError`; then nothing stays open."""
    database = Database(url)

    def work(tx: sa.Connection) -> str:
        registry_id = open_schema(tx)
        begin(tx)
        return registry_id

    try:
        return Opened(database, database.open(work))
    except BaseException:
        database.close()
        raise
