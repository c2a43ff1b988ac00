"""Labels of gateways in the registry: set by the operator, or by the token of an enrolment.

They end when the gateway is forgotten, because the next gateway of that name is another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.labels import Changes, apply_changes
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import PARAMETERS_MAX, labels
from cloud.hub.registry.tenant_state import require_tenant


def labels_of(tx: sa.Connection, tenant: str, gateways: Collection[str] | None = None) -> dict[str, dict[str, str]]:
    """Return the labels of these gateways of a tenant, or of all. Gateways without labels are left out."""
    query = sa.select(labels.c.gateway, labels.c.key, labels.c.value).where(labels.c.tenant == tenant)
    if gateways is not None and len(gateways) < PARAMETERS_MAX:
        query = query.where(labels.c.gateway.in_(gateways))
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for gateway, key, value in tx.execute(query.order_by(labels.c.gateway, labels.c.key)):
        found[gateway][key] = value
    return dict(found)


def all_labels(tx: sa.Connection) -> dict[Key, dict[str, str]]:
    """Return the labels of all gateways of all tenants."""
    tenants = tx.execute(sa.select(labels.c.tenant).distinct()).scalars().all()
    return {(tenant, name): mine for tenant in tenants for name, mine in labels_of(tx, tenant).items()}


def put(tx: sa.Connection, tenant: str, gateway: str, changes: Changes) -> None:
    """Change the labels of a gateway. Raises `LabelError` for too many, `TenantRemoved`."""
    require_tenant(tx, tenant)
    before = labels_of(tx, tenant, (gateway,)).get(gateway, {})
    after = apply_changes(before, changes)
    if after != before:
        drop(tx, tenant, gateway)
        notify(tx, NoticeTopic.LABELS)
    if after != before and after:
        rows = [{"tenant": tenant, "gateway": gateway, "key": key, "value": value} for key, value in after.items()]
        tx.execute(labels.insert(), rows)


def drop(tx: sa.Connection, tenant: str, gateway: str) -> None:
    """Remove all labels of a gateway."""
    tx.execute(labels.delete().where(labels.c.tenant == tenant, labels.c.gateway == gateway))


def encode(found: Changes) -> str | None:
    """Encode labels for a token; None without labels."""
    return msgspec.json.encode(found).decode() if found else None


def decode(text: str | None) -> dict[str, str]:
    """Decode the labels of a token."""
    return msgspec.json.decode(text, type=dict[str, str]) if text is not None else {}
