"""Tables of the registry with rows of a tenant. In some of them the rows end with it, in others they stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

from cloud.hub.registry.commands import CommandState
from cloud.hub.registry.schema import (
    alerts,
    artefact_keys,
    artefact_names,
    attestations,
    audit,
    campaign_members,
    campaigns,
    certificates,
    command_keys,
    commands,
    configurations,
    configured,
    device_credentials,
    device_links,
    device_selectors,
    device_targets,
    device_updates,
    devices,
    event_gaps,
    events,
    gateways,
    labels,
    ledgered,
    lineages,
    local_device_lists,
    local_devices,
    marks,
    mutes,
    problems,
    request_keys,
    rollouts,
    selectors,
    sessions,
    tenant_quotas,
    tenant_removals,
    tokens,
    trust_anchors,
    usage,
    views,
    webhooks,
)

ROWS_A_STEP: Final = 500
"""Rows that one transaction of a removal deletes: some 10 ms, so that landings are not held up."""
OF_DEVICES: Final = (device_credentials, device_links, device_targets, device_selectors, devices, trust_anchors)
"""Tables with the name of a tenant of devices; `device_tenants` has its owner."""
DELETED: Final = (
    tokens, labels, attestations, configurations, selectors, rollouts, commands, command_keys, mutes, webhooks,
    problems, artefact_names, artefact_keys, device_updates, campaign_members, campaigns,
    local_devices, local_device_lists,
)  # fmt: skip
"""Tables with the name of the tenant; its rows end with it."""
OF_USERS: Final = ((sessions, sessions.c.user), (views, views.c.user))
"""Tables of what users have, with the name of the user, which ends with that of its tenant."""
KEPT: Final[Mapping[sa.Table, str]] = {
    gateways: "generations, which fence older connections, and messages in the lake; forgotten",
    marks: "positions of what is in the lake: it must not land twice",
    ledgered: "positions of losses in the lake",
    lineages: "openings of the gateways' stores: an older copy of one is found",
    configured: "numbers of versions that gateways have decided about; nothing is wanted any more",
    certificates: "revoked ones, which are in the revocation list until they end",
    usage: "what has landed on each day, for the last invoice; dropped by age",
    audit: "who has changed what; dropped by age",
    events: "what has happened; dropped by age",
    event_gaps: "number of the first event that readers can get",
    alerts: "alerts of the past; dropped by age",
    request_keys: "answers to requests, so that a repeated one changes nothing; dropped after a day",
    tenant_quotas: "an empty row with the number of the change",
    tenant_removals: "the removal itself",
}
"""Tables with the name of the tenant where its rows stay, and why."""


def delete_some(tx: sa.Connection, table: sa.Table, *mine: sa.ColumnElement[bool], most: int = ROWS_A_STEP) -> int:
    """Delete some rows of a table; return their number."""
    keys = list(table.primary_key)
    rows = tx.execute(sa.select(*keys).where(*mine).limit(most)).all()
    if rows:
        same = (key == sa.bindparam(f"at_{place}", type_=key.type) for place, key in enumerate(keys))
        at = [{f"at_{place}": value for place, value in enumerate(row)} for row in rows]
        tx.execute(table.delete().where(*same), at)
    return len(rows)


def of_user(column: sa.ColumnElement[str], tenant: str) -> sa.ColumnElement[bool]:
    """Return the condition that a user is one of a tenant."""
    return column.like(f"%@{tenant}")


def count_rows(tx: sa.Connection, table: sa.Table, *mine: sa.ColumnElement[bool]) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(table).where(*mine)).scalar_one())


def deleted_of(table: sa.Table, tenant: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the condition for rows of one of `DELETED` that end with a tenant. The newest command of all tenants is
    cleared instead: hubs follow new ones by their numbers, which must not be used again."""
    mine = table.c.tenant == tenant
    return (mine, commands.c.number < _newest_command()) if table is commands else (mine,)


def clear_newest_command(tx: sa.Connection, tenant: str) -> bool:
    """Delete what the newest command of all tenants says, if it is one of this tenant; return whether it was."""
    empty = dict.fromkeys(("tenant", "gateway", "device", "name", "sent_by", "reason"), "")
    nothing = dict.fromkeys(
        ("content_type", "correlation_id", "reply_to", "response_status", "response_type", "response")
    )
    values = {**empty, **nothing, "payload": b"", "wants_response": False, "state": CommandState.REJECTED.value}
    mine = (commands.c.tenant == tenant, commands.c.number == _newest_command())
    return bool(tx.execute(commands.update().where(*mine).values(**values)).rowcount)


def _newest_command() -> sa.ScalarSelect[int]:
    return sa.select(sa.func.max(commands.c.number)).scalar_subquery()
