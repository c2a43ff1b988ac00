"""Removal of a tenant from the registry in parts, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cloud.hub.groups import Presence
from cloud.hub.registry import tenant_removal
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.names import known_gateways
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import TENANTS_END, metadata
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry.tenant_removal import RemovalRefusal, RemovalStep, TenantNotRemoved, TenantRemovals
from cloud.hub.registry.tenant_tables import DELETED, KEPT, OF_DEVICES, OF_USERS, ROWS_A_STEP, delete_some
from cloud.hub.tenants import Quota, TenantBeingRemoved
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import SECOND, document, sign

T: Final = metadata.tables
NOW_US: Final = 100 * SECOND
LATER_US: Final = 10**17
NAMES: Final = ("g1", "g2", "g3")
STEPS_MAX: Final = 500
"""Steps of a removal in these tests: more would mean that it does not end."""


def fill(tx: sa.Connection, table: str, **values: Any) -> None:
    """Insert a row, with something in each other column that needs a value."""
    row: dict[str, Any] = {}
    for column in T[table].columns:
        if column.key in values:
            row[column.key] = values[column.key]
        elif not column.nullable and column.autoincrement is not True:
            kind = column.type.python_type
            row[column.key] = {int: 1, float: 1.0, bool: False, bytes: b""}.get(kind, f"{column.key[:4]}")
    row = {name: value for name, value in row.items() if (name, value) != ("number", None)}
    tx.execute(T[table].insert().values(**row))


def fill_tenant(tx: sa.Connection, tenant: str) -> None:
    """Make something of each kind in a tenant."""
    mine = {"tenant": tenant}
    key = f"{tenant[:4]}"
    for number, name in enumerate(NAMES):
        gateway = {**mine, "gateway": name}
        fill(tx, "certificates", **gateway, serial=f"{key}{number}", ends_at=LATER_US, revoked_at=None)
        for table in (
            "labels",
            "attestations",
            "configured",
            "marks",
            "ledgered",
            "lineages",
            "problems",
            "event_gaps",
        ):
            if table != "event_gaps" or not number:
                wanted = {"wanted": 3, "report": None} if table == "configured" else {}
                fill(tx, table, **(gateway if "gateway" in T[table].c else mine), **wanted)
        fill(tx, "configurations", **gateway, version=3, content="{}", signature="x")
        fill(tx, "commands", **gateway, id=f"{key}{number}", number=None, state="waiting", created_at=number)
    fill(tx, "tokens", **mine, id=key, expires_at=LATER_US)
    fill(tx, "selectors", **mine)
    fill(tx, "rollouts", **mine, id=f"{key}r", state="running", resources="[]", stages=None)
    fill(tx, "rollout_members", rollout=f"{key}r", gateway="g1", phase="sent")
    fill(tx, "command_keys", **mine)
    fill(tx, "mutes", **mine, id=key)
    fill(tx, "webhooks", **mine, id=key)
    fill(tx, "artefacts", **mine, removing=False)
    for table in ("artefact_names", "artefact_keys", "device_updates", "usage", "request_keys"):
        fill(tx, table, **mine, **({"user": key} if table == "request_keys" else {}))
    fill(tx, "campaigns", **mine, id=f"{key}c", state="running", stages="[]", closed=False, devices_of=tenant)
    fill(tx, "campaign_members", **mine, campaign=f"{key}c", devices_of=tenant, phase="sent")
    fill(tx, "users", name=f"ann@{tenant}")
    fill(tx, "sessions", key=key, user=f"ann@{tenant}")
    fill(tx, "views", user=f"ann@{tenant}")
    for each in (tenant, f"{tenant}-more"):
        fill(tx, "device_tenants", tenant=each, owner=tenant, devices=2, document="{}")
        for table_of in OF_DEVICES:
            fill(tx, table_of.name, tenant=each, **({"subject": each} if table_of.name == "trust_anchors" else {}))
    for table in ("audit", "events", "alerts"):
        fill(tx, table, **mine, **({"id": key} if table == "alerts" else {"number": None}))


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


def run(database: Database, removals: TenantRemovals, tenant: str) -> RemovalStep:
    """Take steps until the removal ends; do what hubs do for it."""
    for _ in range(STEPS_MAX):
        result = removals.step(tenant, NOW_US)
        if result is RemovalStep.WAITS:
            gone = T["artefacts"].delete().where(T["artefacts"].c.tenant == tenant, T["artefacts"].c.removing)
            database.transaction(lambda tx, gone=gone: tx.execute(gone))  # type: ignore[misc]
        elif result is not RemovalStep.MORE:
            return result
    raise AssertionError("the removal does not end")


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
        assert {table.name for table, _ in OF_USERS} == of_users | {"users"}

    def test_tables_of_parts_end_with_their_whole(self) -> None:
        parts = {table.name for table in metadata.sorted_tables if table.foreign_keys} - {table.name for table in KEPT}
        assert parts == {"rollout_members", "alert_gateways"}  # those of alerts end with them, by age


class TestBegin:
    def test_tenant_with_something_in_it_stays(self, removals: TenantRemovals) -> None:
        with pytest.raises(TenantNotRemoved) as refused:
            removals.begin("acme", "ops", NOW_US, forced=False, more={"users": 2})
        assert refused.value.why is RemovalRefusal.IN_USE
        assert refused.value.contents == {
            "gateways": 3,
            "open-tokens": 1,
            "users": 2,
            "rollouts": 1,
            "selectors": 1,
            "campaigns": 1,
            "webhooks": 1,
            "artefacts": 1,
            "artefact-keys": 1,
            "device-tenants": 2,
            "devices": 4,
        }
        assert removals.all() == []

    def test_default_tenant_is_never_removed(self, removals: TenantRemovals) -> None:
        with pytest.raises(TenantNotRemoved) as refused:
            removals.begin("default", "ops", NOW_US, forced=True)
        assert refused.value.why is RemovalRefusal.DEFAULT

    def test_unknown_tenant_is_refused(self, removals: TenantRemovals) -> None:
        with pytest.raises(TenantNotRemoved) as refused:
            removals.begin("other", "ops", NOW_US, forced=True)
        assert refused.value.why is RemovalRefusal.UNKNOWN

    def test_older_hub_prevents_it(self, database: Database, removals: TenantRemovals) -> None:
        older = {"id": "h", "name": "old", "schema": TENANTS_END - 1, "state": "serving", "seen_at": NOW_US}
        database.transaction(lambda tx: fill(tx, "hubs", **older))
        with pytest.raises(TenantNotRemoved) as refused:
            removals.begin("acme", "ops", NOW_US, forced=True)
        assert refused.value.why is RemovalRefusal.OLDER_HUB

    def test_second_request_finds_the_first_one(self, removals: TenantRemovals) -> None:
        first = removals.begin("acme", "ops", NOW_US, forced=True)
        assert removals.begin("acme", "eve", NOW_US + 1, forced=True) == first
        assert removals.begin("acme", "eve", NOW_US + 1, forced=False) == first
        assert (first.number, first.forced, first.ended_at) == (1, True, None)

    def test_nothing_new_is_made_in_it(self, place: Place, database: Database, removals: TenantRemovals) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        wanted = WantedConfiguration("acme", "g1", [document("a")], 60.0, False, "ann", "")
        with pytest.raises(TenantBeingRemoved):
            Configurations(database).set_wanted([wanted], NOW_US, sign)
        Configurations(database).set_wanted([wanted._replace(tenant="mega")], NOW_US, sign)
        with contextlib.closing(TenantQuotas(place.url)) as quotas:
            with pytest.raises(TenantBeingRemoved):
                quotas.change("acme", Quota(), lambda _before: None)
            quotas.change("mega", Quota(), lambda _before: None)


class TestSteps:
    def test_last_step_waits_until_it_is_allowed(self, database: Database, removals: TenantRemovals) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        for _ in range(STEPS_MAX):
            if removals.step("acme", NOW_US, may_end=False) is not RemovalStep.MORE:
                break
        gone = T["artefacts"].delete().where(T["artefacts"].c.tenant == "acme")
        database.transaction(lambda tx: tx.execute(gone))
        assert removals.contents("acme", NOW_US) == {}
        assert removals.step("acme", NOW_US, may_end=False) is RemovalStep.WAITS
        assert removals.step("acme", NOW_US) is RemovalStep.ENDED

    def test_tenant_ends_and_its_neighbour_stays(self, database: Database, removals: TenantRemovals) -> None:
        neighbour, before = rows_of(database, "mega"), rows_of(database, "acme")
        assert {table.name for table in (*DELETED, *OF_DEVICES)} <= set(before)  # there is something in each
        removals.begin("acme", "ops", NOW_US, forced=True)
        assert run(database, removals, "acme") is RemovalStep.ENDED
        after = rows_of(database, "acme")
        assert set(after) <= {table.name for table in KEPT} | {"tenants"}
        for table in ("marks", "ledgered", "lineages", "usage"):
            assert after[table] == before[table]
        assert rows_of(database, "mega") == neighbour
        assert removals.contents("acme", NOW_US) == {}
        assert database.transaction(lambda tx: known_gateways(tx, "acme")) == {}
        [ended] = removals.all()
        assert (ended.tenant, ended.ended_at) == ("acme", NOW_US)

    def test_certificates_are_revoked_and_stay(self, database: Database, removals: TenantRemovals) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        run(database, removals, "acme")
        table = T["certificates"]
        found = database.transaction(
            lambda tx: tx.execute(sa.select(table.c.revoked_at).where(table.c.tenant == "acme")).scalars().all()
        )
        assert found == [NOW_US] * len(NAMES)

    def test_generations_go_on_when_the_name_comes_again(
        self, place: Place, database: Database, removals: TenantRemovals
    ) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        run(database, removals, "acme")
        registry = place.open()
        registry.directory.presence({("acme", "g1"): Presence("there", True, NOW_US, 1)})
        [again] = registry.directory.gateways()[:1]
        assert (again.tenant, again.name, again.generation) == ("acme", "g1", 2)
        assert removals.contents("acme", NOW_US) == {"gateways": 1, "connected-gateways": 1}
        with pytest.raises(TenantNotRemoved):
            removals.begin("acme", "ops", NOW_US, forced=False)
        assert removals.begin("acme", "ops", NOW_US, forced=True).number == 2

    def test_removal_waits_for_connected_gateways(self, place: Place, removals: TenantRemovals) -> None:
        registry = place.open()
        registry.directory.presence({("acme", "g2"): Presence("there", True, NOW_US, 1)})
        removals.begin("acme", "ops", NOW_US, forced=True)
        while removals.step("acme", NOW_US) is RemovalStep.MORE:
            pass
        assert removals.step("acme", NOW_US) is RemovalStep.WAITS
        found = removals.contents("acme", NOW_US)
        assert (found["gateways"], found["connected-gateways"]) == (1, 1)
        registry.directory.presence({("acme", "g2"): Presence("there", False, NOW_US + 1)})
        while removals.step("acme", NOW_US) is RemovalStep.MORE:
            pass
        assert removals.contents("acme", NOW_US) == {"artefacts": 1}

    def test_any_program_goes_on_after_each_step(
        self, place: Place, database: Database, removals: TenantRemovals
    ) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        for _ in range(STEPS_MAX):
            with contextlib.closing(open_registry(place.url).database) as other:
                if TenantRemovals(other).step("acme", NOW_US) is not RemovalStep.MORE:
                    break
        assert run(database, removals, "acme") is RemovalStep.ENDED

    def test_each_step_deletes_a_limited_number_of_rows(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = T["devices"]
        rows = [
            {"tenant": "acme", "device": f"d{number:04}", "document": "{}", "revision": 1, "credentials_revision": 1,
             "created_at": 1, "updated_at": 1, "updated_by": ""}
            for number in range(ROWS_A_STEP + 1)
        ]  # fmt: skip
        database.transaction(lambda tx: tx.execute(table.insert(), rows))
        counts = [database.transaction(lambda tx: delete_some(tx, table, table.c.tenant == "acme")) for _ in range(3)]
        assert counts == [ROWS_A_STEP, 2, 0]

    def test_empty_tenant_needs_no_force(self, place: Place, database: Database, removals: TenantRemovals) -> None:
        with contextlib.closing(TenantQuotas(place.url)) as quotas:
            quotas.change("empty", Quota(gateways=3), lambda _before: None)
            number = quotas.number()
            assert removals.begin("empty", "ops", NOW_US, forced=False).number == 1
            assert run(database, removals, "empty") is RemovalStep.ENDED
            assert "empty" not in quotas.read().quotas
            assert quotas.number() > number
        with pytest.raises(TenantNotRemoved) as refused:
            removals.begin("empty", "ops", NOW_US, forced=False)
        assert refused.value.why is RemovalRefusal.UNKNOWN

    def test_what_an_older_program_makes_meanwhile_stays_without_force(
        self, place: Place, database: Database, removals: TenantRemovals
    ) -> None:
        with contextlib.closing(TenantQuotas(place.url)) as quotas:
            quotas.change("empty", Quota(gateways=3), lambda _before: None)
        removals.begin("empty", "ops", NOW_US, forced=False)
        database.transaction(lambda tx: fill(tx, "users", name="bob@empty"))
        assert run(database, removals, "empty") is RemovalStep.LEFT
        assert removals.contents("empty", NOW_US) == {"users": 1}
        [left] = removals.all()
        assert (left.number, left.ended_at) == (0, NOW_US)

    def test_what_an_older_program_makes_meanwhile_ends_with_force(
        self, database: Database, removals: TenantRemovals
    ) -> None:
        removals.begin("acme", "ops", NOW_US, forced=True)
        for _ in range(STEPS_MAX):
            if removals.step("acme", NOW_US) is not RemovalStep.MORE:
                break
        database.transaction(lambda tx: fill(tx, "users", name="bob@acme"))
        assert run(database, removals, "acme") is RemovalStep.ENDED
        assert removals.contents("acme", NOW_US) == {}


def test_every_phase_is_one_of_the_removal() -> None:
    phases = {name for name in vars(tenant_removal) if name.startswith("_end_") and name != "_end"}
    assert phases <= {phase.__name__ for phase in tenant_removal._PHASES}
