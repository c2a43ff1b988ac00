"""Things that keep a tenant from its removal, by kind."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from cloud.hub.registry import names
from cloud.hub.registry.schema import (
    artefact_keys,
    artefacts,
    campaigns,
    device_tenants,
    gateways,
    rollouts,
    selectors,
    tokens,
    users,
    webhooks,
)
from cloud.hub.registry.tenant_tables import count_rows, of_user
from cloud.hub.roles import has_fleet_right
from cloud.hub.rollout import GOING
from edge.broker.security.credentials import CredentialUser

FLEET_USERS = "fleet-users"
"""Kind of the users of a tenant with rights on every tenant: they are not removed with it."""


def contents_of(tx: sa.Connection, tenant: str, now_us: int) -> dict[str, int]:
    """Return the number of things that keep a tenant from its removal, by kind; kinds without any are left out."""
    open_token = (tokens.c.spent_at.is_(None), tokens.c.revoked_at.is_(None), tokens.c.expires_at > now_us)
    counts = {
        "gateways": names.count_known(tx, tenant),
        "connected-gateways": count_rows(tx, gateways, gateways.c.tenant == tenant, gateways.c.connected.is_(True)),
        "open-tokens": count_rows(tx, tokens, tokens.c.tenant == tenant, *open_token),
        "users": count_rows(tx, users, of_user(users.c.name, tenant)),
        "rollouts": count_rows(
            tx, rollouts, rollouts.c.tenant == tenant, rollouts.c.state.in_([each.value for each in GOING])
        ),
        "selectors": count_rows(tx, selectors, selectors.c.tenant == tenant),
        "campaigns": count_rows(tx, campaigns, campaigns.c.tenant == tenant, campaigns.c.closed.is_(False)),
        "webhooks": count_rows(tx, webhooks, webhooks.c.tenant == tenant),
        "artefacts": count_rows(tx, artefacts, artefacts.c.tenant == tenant),
        "artefact-keys": count_rows(tx, artefact_keys, artefact_keys.c.tenant == tenant),
        "device-tenants": count_rows(tx, device_tenants, device_tenants.c.owner == tenant),
        "devices": _sum_devices(tx, tenant),
        FLEET_USERS: sum(map(is_of_fleet, users_of(tx, tenant).values())),
    }
    return {kind: count for kind, count in counts.items() if count}


def users_of(tx: sa.Connection, tenant: str) -> dict[str, str]:
    """Return the documents of the users of a tenant, by name."""
    query = sa.select(users.c.name, users.c.document).where(of_user(users.c.name, tenant)).order_by(users.c.name)
    return {row.name: row.document for row in tx.execute(query)}


def is_of_fleet(document: str) -> bool:
    """Return whether a user has a right on every tenant; True for a document that cannot be read."""
    try:
        return has_fleet_right(msgspec.json.decode(document, type=CredentialUser).rules)
    except msgspec.MsgspecError:
        return True


def _sum_devices(tx: sa.Connection, tenant: str) -> int:
    query = sa.select(sa.func.sum(device_tenants.c.devices)).where(device_tenants.c.owner == tenant)
    return int(tx.execute(query).scalar() or 0)
