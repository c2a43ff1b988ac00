"""Follows the quotas that operators set for tenants in the registry, and changes them. All hubs of it have the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.limits import QUOTAS_CHECK_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry_thread import RegistryThread
from cloud.hub.tenants import Quota, Tenants
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)


class SharedQuotas:
    """Keeps the quotas of `Tenants` those of the registry. Call `open`, later `close`, inside a running loop."""

    def __init__(
        self, registry: sa.URL, tenants: Tenants, named: Callable[[Iterable[str]], None], hint: ChangeHint
    ) -> None:
        """`named` gets the tenants with a quota after each change; `hint` is given when another hub or process changes
        one."""
        self._tenants = tenants
        self._named = named
        self._seen = -1
        """Number of the last change that is in effect."""
        self._thread = RegistryThread("quotas", lambda: TenantQuotas(registry))
        self._following = PeriodicTask(
            "quotas", self._follow, QUOTAS_CHECK_S,
            log=log, failed="changes of quotas are not in effect", expected=(RegistryError,), wait=hint.wait,
        )  # fmt: skip
        self._busy = asyncio.Lock()

    @property
    def trouble(self) -> str | None:
        """Reason why changes are not in effect; None if they are."""
        return self._following.trouble

    async def open(self) -> None:
        """Open the registry, take over its quotas, and follow their changes. Raises `RegistryError`."""
        await self._thread.open()
        await self._reload()
        self._following.start()

    async def change(self, tenant: str, quota: Quota | None, check: Callable[[Quota | None], None]) -> Quota | None:
        """Call `TenantQuotas.change`; the change is in effect at this hub on return. Raises `RegistryError`, and what
        `check` raises."""
        before = await self._thread.run(lambda registry: registry.change(tenant, quota, check))
        with contextlib.suppress(RegistryError):  # the change is made; the next look takes it over
            await self._reload()
        return before

    async def close(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        await self._following.stop()
        await self._thread.close()

    async def _follow(self) -> None:
        if await self._thread.run(TenantQuotas.number) != self._seen:
            await self._reload()

    async def _reload(self) -> None:
        async with self._busy:
            found = await self._thread.run(TenantQuotas.read)
            self._seen = found.number
            self._tenants.share(found.quotas)
            self._named(found.quotas)
