"""Migration of a registry to the tables of this program: what it would do, and doing it.

Hubs migrate at their start too. A migration only adds, so hubs of the version before go on, and start again if need be
(``cloud/decisions/0021-schema-changes-expand-then-contract.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import LOWEST_SCHEMA, SCHEMA_VERSION, additions, version_of


class MigrationPlan(NamedTuple):
    """Difference between a registry and the tables of this program."""

    found: int | None
    """Schema version of the registry; None if it is empty."""
    additions: Sequence[str]
    """Tables, columns and indexes to add."""
    wanted: int = SCHEMA_VERSION
    lowest: int = LOWEST_SCHEMA
    """Lowest schema version of a program that may use the registry afterwards."""

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing to do."""
        return self.found is not None and self.found >= self.wanted


def plan_migration(url: sa.URL) -> MigrationPlan:
    """Return what a migration would do; changes nothing. Raises `RegistryError`."""
    database = Database(url, reading=True)
    try:
        return database.transaction(_plan)
    finally:
        database.close()


def _plan(tx: sa.Connection) -> MigrationPlan:
    found = version_of(tx)
    done = found is not None and found >= SCHEMA_VERSION
    return MigrationPlan(found, [] if done or found is None else additions(tx))


def migrate_registry(url: sa.URL) -> MigrationPlan:
    """Migrate or create a registry, in one transaction; return what was to do. Raises `RegistryError`."""
    plan = plan_migration(url)
    open_registry(url).database.close()
    return plan
