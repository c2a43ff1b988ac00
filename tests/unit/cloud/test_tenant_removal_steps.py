"""Steps of the removal of a tenant from a registry in SQLite: parts, leases, and users that stay."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry.tenant_removal import (
    GATEWAYS_A_STEP,
    LEASE_S,
    SEEN_S,
    RemovalStep,
    TenantNotRemoved,
    TenantRemovals,
)
from cloud.hub.registry.tenant_tables import ROWS_A_STEP, delete_some
from cloud.hub.tenants import Quota
from tests.support.tenant_rows import (
    LATER_US,
    NOW_US,
    STEPS_MAX,
    T,
    begin,
    fill,
    fill_tenant,
    run,
    run_until_it_waits,
    step,
    user_document,
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a registry with something of each kind in acme: tables take a third of a second to make."""
    file = tmp_path_factory.mktemp("registry") / "registry.db"
    with contextlib.closing(open_registry(sqlite_url(file)).database) as database:
        database.transaction(lambda tx: fill(tx, "tenants", name="acme"))
        database.transaction(lambda tx: fill_tenant(tx, "acme"))
    return file


@pytest.fixture
def registry(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / filled.name


@pytest.fixture
def database(registry: Path) -> Iterator[Database]:
    with contextlib.closing(open_registry(sqlite_url(registry)).database) as found:
        yield found


@pytest.fixture
def removals(database: Database) -> TenantRemovals:
    return TenantRemovals(database)


def test_users_with_rights_on_the_fleet_prevent_it(database: Database, removals: TenantRemovals) -> None:
    document = user_document("root@acme", "manage:$fleet")
    database.transaction(lambda tx: fill(tx, "users", name="root@acme", document=document))
    with pytest.raises(TenantNotRemoved) as refused:
        begin(removals, "acme")
    assert refused.value.contents["fleet-users"] == 1
    database.transaction(lambda tx: tx.execute(T["users"].delete().where(T["users"].c.name == "root@acme")))
    begin(removals, "acme")
    database.transaction(lambda tx: fill(tx, "users", name="root@acme", document=document))
    run_until_it_waits(removals, "acme")
    assert removals.contents("acme", NOW_US)["fleet-users"] == 1


def test_any_hub_goes_on_after_each_step(database: Database, removals: TenantRemovals) -> None:
    begin(removals, "acme")
    assert step(removals, "acme", "ahead", LATER_US) is RemovalStep.MORE  # its clock is wrong: no hub waits for it
    now_us, count = NOW_US, 0
    while step(removals, "acme", f"hub{count % 3}", now_us) is RemovalStep.MORE:
        assert step(removals, "acme", "another", now_us) is RemovalStep.HELD
        now_us, count = now_us + int(LEASE_S * 1_000_000), count + 1
        assert count < STEPS_MAX
    gone = T["artefacts"].delete().where(T["artefacts"].c.tenant == "acme")
    database.transaction(lambda tx: tx.execute(gone))
    assert step(removals, "acme", f"hub{count % 3}", now_us) is RemovalStep.ENDED


def test_each_step_has_a_limit(database: Database, removals: TenantRemovals) -> None:
    def many(tx: sa.Connection) -> None:
        """Enrol more gateways than one step revokes or forgets."""
        for number in range(GATEWAYS_A_STEP + 1):
            names = {"tenant": "acme", "gateway": f"n{number:03}", "serial": f"s{number}"}
            fill(tx, "certificates", **names, ends_at=LATER_US, revoked_at=None)

    table = T["devices"]
    rows = [
        {"tenant": "acme", "device": f"d{number:04}", "document": "{}", "revision": 1, "credentials_revision": 1,
         "created_at": 1, "updated_at": 1, "updated_by": ""}
        for number in range(ROWS_A_STEP + 1)
    ]  # fmt: skip
    database.transaction(lambda tx: tx.execute(table.insert(), rows))
    counts = [database.transaction(lambda tx: delete_some(tx, table, table.c.tenant == "acme")) for _ in range(3)]
    assert counts == [ROWS_A_STEP, 2, 0]
    database.transaction(many)
    begin(removals, "acme")
    run_until_it_waits(removals, "acme")
    assert removals.contents("acme", NOW_US) == {"artefacts": 1}


def test_connected_gateways_have_time_to_be_answered(database: Database, removals: TenantRemovals) -> None:
    """Each hub has to see the removal first, and lands what its gateways have sent."""
    database.transaction(lambda tx: fill(tx, "gateways", tenant="acme", name="g1", connected=True))
    begin(removals, "acme")
    seen_us = NOW_US + int(SEEN_S * 1_000_000)
    for now_us in (NOW_US, seen_us - 1):
        assert step(removals, "acme", now_us=now_us) is RemovalStep.WAITS
    assert step(removals, "acme", now_us=seen_us) is RemovalStep.MORE


def test_rollout_that_is_made_late_is_removed_too(database: Database, removals: TenantRemovals) -> None:
    """Its rows refer to one another, so the order of their deletion counts, also in the middle of a removal."""

    def late(tx: sa.Connection) -> None:
        fill(tx, "rollouts", tenant="acme", id="late", state="running", resources="[]", stages=None)
        fill(tx, "rollout_members", rollout="late", gateway="g1", phase="sent")

    begin(removals, "acme")
    for _ in range(9):
        assert step(removals, "acme") is RemovalStep.MORE
    database.transaction(late)
    assert run(database, removals, "acme") is RemovalStep.ENDED
    assert removals.contents("acme", NOW_US) == {}


def test_empty_tenant_needs_no_force(registry: Path, database: Database, removals: TenantRemovals) -> None:
    with contextlib.closing(TenantQuotas(sqlite_url(registry))) as quotas:
        quotas.change("empty", Quota(gateways=3), lambda _before: None)
        number = quotas.number()
        begin(removals, "empty", forced=False)
        assert run(database, removals, "empty") is RemovalStep.ENDED
        assert "empty" not in quotas.read().quotas
        assert quotas.number() > number
