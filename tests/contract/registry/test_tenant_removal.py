"""Removal of a tenant from the registry in parts, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cloud.hub.groups import Presence
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.names import known_gateways
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import TENANTS_END, metadata, record_revision
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry.tenant_removal import RemovalRefusal, RemovalStep, TenantNotRemoved, TenantRemovals
from cloud.hub.registry.tenant_tables import DELETED, KEPT, OF_DEVICES, OF_USERS
from cloud.hub.tenants import Quota, TenantRemoved
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import document, sign
from tests.support.tenant_rows import (
    HUB,
    NAMES,
    NOW_US,
    T,
    begin,
    fill,
    fill_tenant,
    run,
    run_until_it_waits,
    user_document,
)


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    registry = place.open()
    registry.directory.presence(
        {(each, name): Presence("here", True, 1, 1) for each in ("acme", "mega") for name in NAMES}
    )
    registry.directory.presence(
        {(each, name): Presence("here", False, 2) for each in ("acme", "mega") for name in NAMES}
    )
    registry.close()
    with contextlib.closing(open_registry(place.url).database) as found:
        for tenant in ("acme", "mega"):
            found.transaction(lambda tx, tenant=tenant: fill_tenant(tx, tenant))  # type: ignore[misc]
        yield found


@pytest.fixture
def removals(database: Database) -> TenantRemovals:
    return TenantRemovals(database)


def rows_of(database: Database, tenant: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a tenant by table."""

    def work(tx: sa.Connection) -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for table in metadata.sorted_tables:
            named = [column for column in table.columns if column.name in ("tenant", "user", "name", "owner")]
            if mine := [
                c.in_([tenant, f"ann@{tenant}", f"{tenant}-more"])
                for c in named
                if not isinstance(c.type, sa.Integer | sa.LargeBinary)
            ]:
                found[table.name] = sorted(
                    (tuple(row) for row in tx.execute(sa.select(table).where(sa.or_(*mine)))), key=repr
                )
        return {name: rows for name, rows in found.items() if rows}

    return database.transaction(work)


class TestTables:
    def test_each_table_of_a_tenant_is_deleted_or_named_as_kept(self) -> None:
        """A table that is new is neither: decide what happens to its rows, and say why if they stay."""
        of_tenants = {
            table.name for table in metadata.sorted_tables if {"tenant", "owner", "devices_of"} & set(table.c.keys())
        }
        deleted = {table.name for table in (*DELETED, *OF_DEVICES)} | {"device_tenants", "artefacts"}
        kept = {table.name for table in KEPT}
        assert not deleted & kept
        assert of_tenants == deleted | kept

    def test_each_table_of_users_is_deleted(self) -> None:
        of_users = {table.name for table in metadata.sorted_tables if "user" in table.c and "tenant" not in table.c}
        assert {table.name for table, _ in OF_USERS} == of_users

    def test_tables_of_parts_end_with_their_whole(self) -> None:
        parts = {table.name for table in metadata.sorted_tables if table.foreign_keys} - {table.name for table in KEPT}
        assert parts == {"rollout_members", "alert_gateways"}  # those of alerts end with them, by age


class TestBegin:
    def test_removal_is_refused(self, database: Database, removals: TenantRemovals) -> None:
        with pytest.raises(TenantNotRemoved) as refused:
            begin(removals, "acme", forced=False, users=2)
        assert refused.value.why is RemovalRefusal.IN_USE
        assert refused.value.contents == {
            "gateways": 3,
            "open-tokens": 1,
            "users": 3,
            "rollouts": 1,
            "selectors": 1,
            "campaigns": 1,
            "webhooks": 1,
            "artefacts": 1,
            "artefact-keys": 1,
            "device-tenants": 2,
            "devices": 4,
        }
        for name, why in (("default", RemovalRefusal.DEFAULT), ("other", RemovalRefusal.UNKNOWN)):
            with pytest.raises(TenantNotRemoved) as refused:
                begin(removals, name, forced=name == "default")
            assert refused.value.why is why
        assert removals.changes(0, 0).removals == []
        older = {"id": "h", "name": "old", "schema": TENANTS_END - 1, "state": "serving", "seen_at": NOW_US}
        database.transaction(lambda tx: fill(tx, "hubs", **older))
        with pytest.raises(TenantNotRemoved) as refused:
            begin(removals, "acme")
        assert refused.value.why is RemovalRefusal.OLDER_HUB

    def test_nothing_is_made_in_it_again(self, place: Place, database: Database, removals: TenantRemovals) -> None:
        wanted = WantedConfiguration("acme", "g1", [document("a")], 60.0, False, "ann", "")
        first = begin(removals, "acme")
        assert begin(removals, "acme", forced=False) == first
        assert (first.number, first.forced, first.ended_at) == (1, True, None)
        for ended in (False, True):
            if ended:
                run(database, removals, "acme")
            with pytest.raises(TenantRemoved):
                Configurations(database).set_wanted([wanted], NOW_US, sign)
            with contextlib.closing(TenantQuotas(place.url)) as quotas, pytest.raises(TenantRemoved):
                quotas.change("acme", Quota(), lambda _before: None)
        Configurations(database).set_wanted([wanted._replace(tenant="mega")], NOW_US, sign)
        begin(removals, "mega")
        lowest = "SELECT lowest FROM schema_revisions"
        assert place.execute(lowest) == [(TENANTS_END,)]  # an older program would make things in it
        database.transaction(record_revision)
        assert place.execute(lowest) == [(TENANTS_END,)]
        changes = removals.changes(1, removals.changes(0, 0).connections)
        assert [(each.tenant, each.number) for each in changes.removals] == [("acme", 2), ("mega", 3)]
        assert removals.changes(3, changes.connections).removals == []
        assert removals.changes(9, changes.connections).whole


class TestSteps:
    def test_tenant_ends_and_its_neighbour_stays(self, database: Database, removals: TenantRemovals) -> None:
        neighbour, before = rows_of(database, "mega"), rows_of(database, "acme")
        assert {table.name for table in (*DELETED, *OF_DEVICES)} <= set(before)  # there is something in each
        begin(removals, "acme")
        assert run(database, removals, "acme") is RemovalStep.ENDED
        after = rows_of(database, "acme")
        assert set(after) <= {table.name for table in KEPT} | {"tenants"}
        for name in ("marks", "ledgered", "lineages", "usage"):
            assert after[name] == before[name]
        assert rows_of(database, "mega") == neighbour
        assert removals.contents("acme", NOW_US) == {}
        assert database.transaction(lambda tx: known_gateways(tx, "acme")) == {}
        [ended] = removals.changes(0, 0).removals
        assert (ended.tenant, ended.ended_at) == ("acme", NOW_US)
        table = T["certificates"]
        revoked = sa.select(table.c.revoked_at).where(table.c.tenant == "acme")
        found = database.transaction(lambda tx: tx.execute(revoked).scalars().all())
        assert found == [NOW_US] * len(NAMES)

    def test_nothing_is_left_also_of_the_newest_command_and_of_older_programs(
        self, database: Database, removals: TenantRemovals
    ) -> None:
        table = T["commands"]
        newest = sa.select(table).order_by(table.c.number.desc()).limit(1)
        number = database.transaction(lambda tx: tx.execute(newest).one().number)
        begin(removals, "mega")
        run(database, removals, "mega")
        row = database.transaction(lambda tx: tx.execute(newest).one())
        assert (row.number, row.tenant, row.gateway, row.payload, row.state) == (number, "", "", b"", "rejected")

        with pytest.raises(TenantNotRemoved) as refused:
            begin(removals, "mega")
        assert refused.value.why is RemovalRefusal.UNKNOWN
        document = user_document("bob@mega")
        database.transaction(lambda tx: fill(tx, "users", name="bob@mega", document=document))  # by an older program
        begin(removals, "mega")
        assert run(database, removals, "mega") is RemovalStep.ENDED
        assert removals.contents("mega", NOW_US) == {}

    def test_gateway_that_was_served_meanwhile_is_removed_too(
        self, place: Place, database: Database, removals: TenantRemovals
    ) -> None:
        begin(removals, "acme")
        run(database, removals, "acme")
        assert removals.used_again() == []
        registry = place.open()
        registry.directory.presence({("acme", "g1"): Presence("there", True, NOW_US, 1)})
        [again] = registry.directory.gateways()[:1]
        assert (again.tenant, again.name, again.generation) == ("acme", "g1", 2)
        assert removals.used_again() == ["acme"]
        removals.go_on(["acme"])
        run_until_it_waits(removals, "acme")
        result = removals.step("acme", HUB, NOW_US)
        assert (result.step, result.left) == (RemovalStep.WAITS, {"gateways": 1, "connected-gateways": 1})
        registry.directory.presence({("acme", "g1"): Presence("there", False, NOW_US + 1)})
        assert run(database, removals, "acme") is RemovalStep.ENDED
        assert removals.used_again() == []
