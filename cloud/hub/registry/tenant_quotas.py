"""Quotas that operators have set for tenants while hubs run.

For a thread of its own, and for commands of the CLI next to it. Every change gets the next number, also a removal,
which leaves an empty row: so a hub sees with one value whether it has to read the quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.limits import TENANT_QUOTAS_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import tenant_quotas
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.tenants import Quota
from cloud.lake.faults import RegistryError

_NUMBER: Final = sa.func.coalesce(sa.func.max(tenant_quotas.c.number), 0)


class TooManyQuotas(RegistryError):
    """The limit of tenants with a quota is reached."""


class QuotaSet(NamedTuple):
    """All quotas, and the number of their last change."""

    quotas: Mapping[str, Quota]
    number: int


class TenantQuotas:
    """Quotas in the registry, for the thread that creates it. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database
        self._reading = Database(url, reading=True)
        """Looks for changes each second, and delays no landing."""

    def close(self) -> None:
        self._reading.close()
        self._database.close()

    def number(self) -> int:
        """Return the number of the last change."""
        return self._reading.transaction(lambda tx: int(tx.execute(sa.select(_NUMBER)).scalar_one()))

    def read(self) -> QuotaSet:
        """Return all quotas."""

        def work(tx: sa.Connection) -> QuotaSet:
            rows = tx.execute(sa.select(tenant_quotas.c.tenant, tenant_quotas.c.document)).all()
            number = int(tx.execute(sa.select(_NUMBER)).scalar_one())
            return QuotaSet({row.tenant: _quota(row.document) for row in rows if row.document is not None}, number)

        return self._reading.transaction(work)

    def change(self, tenant: str, quota: Quota | None, check: Callable[[Quota | None], None]) -> Quota | None:
        """Set the quota of a tenant, or remove it (None); return the one before. `check` gets the one before, in the
        same transaction, and may raise. Raises `TooManyQuotas`."""

        def work(tx: sa.Connection) -> Quota | None:
            mine = tenant_quotas.c.tenant == tenant
            text = tx.execute(sa.select(tenant_quotas.c.document).where(mine)).scalar()
            before = None if text is None else _quota(text)
            check(before)
            if quota is not None:
                require_tenant(tx, tenant)
            if before == quota:
                return before
            count = tx.execute(sa.select(sa.func.count()).select_from(tenant_quotas)).scalar_one()
            if count >= TENANT_QUOTAS_MAX and not tx.execute(sa.select(tenant_quotas.c.tenant).where(mine)).first():
                raise TooManyQuotas(f"{TENANT_QUOTAS_MAX} tenants have or had a quota, which is the maximum")
            number = int(tx.execute(sa.select(_NUMBER)).scalar_one()) + 1
            tx.execute(tenant_quotas.delete().where(mine))
            document = None if quota is None else msgspec.json.encode(quota).decode()
            tx.execute(tenant_quotas.insert().values(tenant=tenant, document=document, number=number))
            notify(tx, NoticeTopic.QUOTAS)
            return before

        return self._database.transaction(work)


def clear_quota(tx: sa.Connection, tenant: str) -> bool:
    """Remove the quota of a tenant; return False if it has none."""
    mine = (tenant_quotas.c.tenant == tenant, tenant_quotas.c.document.is_not(None))
    number = int(tx.execute(sa.select(_NUMBER)).scalar_one()) + 1
    if not tx.execute(tenant_quotas.update().where(*mine).values(document=None, number=number)).rowcount:
        return False
    notify(tx, NoticeTopic.QUOTAS)
    return True


def _quota(text: str) -> Quota:
    try:
        return msgspec.json.decode(text, type=Quota)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"a quota in the registry cannot be read: {error}") from error
