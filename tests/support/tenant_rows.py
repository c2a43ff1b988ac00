"""Rows of a tenant in a registry, and steps of its removal."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import metadata
from cloud.hub.registry.tenant_removal import RemovalStep, TenantRemoval, TenantRemovals, removal_line
from cloud.hub.registry.tenant_tables import OF_DEVICES
from edge.broker.security.credentials import new_user
from edge.broker.security.rights import parse_rights

T: Final = metadata.tables
NOW_US: Final = 100_000_000
LATER_US: Final = 10**17
HUB: Final = "here"
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


def user_document(name: str, *rights: str) -> str:
    return msgspec.json.encode(new_user(name, parse_rights(rights))).decode()


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
            "local_devices",
            "local_device_lists",
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
    fill(tx, "users", name=f"ann@{tenant}", document=user_document(f"ann@{tenant}", "recv:#"))
    fill(tx, "sessions", key=key, user=f"ann@{tenant}")
    fill(tx, "views", user=f"ann@{tenant}")
    for each in (tenant, f"{tenant}-more"):
        fill(tx, "device_tenants", tenant=each, owner=tenant, devices=2, document="{}")
        for table_of in OF_DEVICES:
            fill(tx, table_of.name, tenant=each, **({"subject": each} if table_of.name == "trust_anchors" else {}))
    for table in ("audit", "events", "alerts"):
        fill(tx, table, **mine, **({"id": key} if table == "alerts" else {"number": None}))


def begin(removals: TenantRemovals, tenant: str, *, forced: bool = True, **more: int) -> TenantRemoval:
    line = removal_line(tenant, "ops", "command line", NOW_US, {}, forced=forced)
    return removals.begin(tenant, line, forced=forced, more=more)


def step(removals: TenantRemovals, tenant: str, hub: str = HUB, now_us: int = NOW_US) -> RemovalStep:
    return removals.step(tenant, hub, now_us).step


def run(database: Database, removals: TenantRemovals, tenant: str) -> RemovalStep:
    """Take steps until the removal ends; do what hubs do for it."""
    for _ in range(STEPS_MAX):
        result = step(removals, tenant)
        if result is RemovalStep.WAITS:
            gone = T["artefacts"].delete().where(T["artefacts"].c.tenant == tenant, T["artefacts"].c.removing)
            database.transaction(lambda tx, gone=gone: tx.execute(gone))  # type: ignore[misc]
        elif result is not RemovalStep.MORE:
            return result
    raise AssertionError("the removal does not end")


def run_until_it_waits(removals: TenantRemovals, tenant: str) -> None:
    for _ in range(STEPS_MAX):
        if step(removals, tenant) is not RemovalStep.MORE:
            return
    raise AssertionError("the removal does not wait")
