"""Registries of later versions: programs that they allow go on, and versions only add."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud.hub.groups import Presence
from cloud.hub.registry.faults import RegistryTooNew
from cloud.hub.registry.migration import migrate_registry, plan_migration
from cloud.hub.registry.schema import LOWEST_SCHEMA, SCHEMA_VERSION, metadata
from cloud.lake.landing import Landing
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.golden import GOLDEN, written_by
from tests.contract.registry.landings import TEMPERATURE, batch, sequences
from tests.support.memory_lake import MemoryLake

LOWEST = GOLDEN / "lowest.json"
"""Columns of the lowest version, and whether each may be null."""
LATER = SCHEMA_VERSION + 1


def expand(place: Place, lowest: int) -> None:
    """Migrate a registry to a later version."""
    place.execute("UPDATE schema_version SET version = :version", version=LATER)
    place.execute("INSERT INTO schema_revisions VALUES (:version, :lowest, 1, 'later')", version=LATER, lowest=lowest)
    place.execute("ALTER TABLE gateways ADD COLUMN later TEXT")
    place.execute("ALTER TABLE commits ADD COLUMN later BIGINT")
    place.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")


def test_later_version_serves_the_programs_that_it_allows(place: Place) -> None:
    """A pod of the version before starts again on it, next to one that runs."""
    running, lake = place.open(), MemoryLake()
    expand(place, SCHEMA_VERSION)
    running.commits.write_to(lake)
    for registry in (running, place.open(THERE)):
        registry.commits.write_to(lake)
        registry.directory.presence({(TEMPERATURE.tenant, TEMPERATURE.gateway): Presence("-", True, 1, 1)})
        Landing(lake, registry.commits).land([batch(TEMPERATURE, 0, 9)], 1_000)
    assert sequences(lake, TEMPERATURE) == list(range(10))
    assert place.execute("SELECT version FROM schema_version") == [(LATER,)]
    assert plan_migration(place.url).is_done
    migrate_registry(place.url)
    assert place.execute("SELECT version FROM schema_version") == [(LATER,)]


def test_later_version_refuses_other_programs(place: Place) -> None:
    place.open().close()
    expand(place, LATER)
    with pytest.raises(RegistryTooNew):
        place.open()
    with pytest.raises(RegistryTooNew):
        plan_migration(place.url)


def test_plan_names_what_a_migration_adds(place: Place) -> None:
    assert plan_migration(place.url).found is None
    written_by(place, 4)
    plan = plan_migration(place.url)
    assert (plan.found, plan.wanted, plan.is_done) == (4, SCHEMA_VERSION, False)
    assert {"table tokens", "column gateways.observed"} <= set(plan.additions)
    assert place.execute("SELECT version FROM schema_version") == [(4,)], "it changes nothing"
    assert migrate_registry(place.url) == plan
    assert plan_migration(place.url).is_done
    found = place.execute("SELECT version, lowest FROM schema_revisions")
    assert found == [(SCHEMA_VERSION, LOWEST_SCHEMA)]


def columns() -> dict[str, dict[str, bool]]:
    tables = sorted(metadata.tables.items())
    return {name: {column.name: bool(column.nullable) for column in table.columns} for name, table in tables}


def test_versions_only_add_to_the_lowest_one() -> None:
    """Programs of the lowest version read and write these columns, and give no other one."""
    golden: dict[str, Any] = json.loads(LOWEST.read_text())
    assert golden["lowest"] == LOWEST_SCHEMA, "write the columns of the new lowest version into the file"
    now = columns()
    for table, before in golden["tables"].items():
        there = now[table]
        assert before.items() <= there.items(), f"{table}: a column was removed or changed; raise LOWEST_SCHEMA"
        assert all(there[name] for name in there.keys() - before.keys()), f"{table}: a new column must be nullable"
