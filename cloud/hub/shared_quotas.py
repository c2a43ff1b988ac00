"""Follows the quotas that operators set for tenants in the registry, and changes them. All hubs of it have the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from cloud.hub.limits import QUOTAS_CHECK_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.tenants import Quota, Tenants
from cloud.lake.faults import RegistryError
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


class SharedQuotas:
    """Keeps the quotas of `Tenants` those of the registry. Call `open`, later `close`, inside a running loop."""

    def __init__(
        self, registry: sa.URL, tenants: Tenants, named: Callable[[Iterable[str]], None], hint: ChangeHint
    ) -> None:
        """`named` gets the tenants with a quota after each change; `hint` is given when another hub or process changes
        one."""
        self.trouble: str | None = None
        """Reason why changes are not in effect; None if they are."""
        self._url = registry
        self._tenants = tenants
        self._named = named
        self._hint = hint
        self._seen = -1
        """Number of the last change that is in effect."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="quotas")
        self._registry: TenantQuotas | None = None
        self._watching: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    async def open(self) -> None:
        """Open the registry, take over its quotas, and follow their changes. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._registry = await loop.run_in_executor(self._executor, TenantQuotas, self._url)
        await self._reload(self._registry)
        self._watching = loop.create_task(self._watch(self._registry), name="quotas")

    async def change(self, tenant: str, quota: Quota | None, check: Callable[[Quota | None], None]) -> Quota | None:
        """Call `TenantQuotas.change`; the change is in effect at this hub on return. Raises `RegistryError`, and what
        `check` raises."""
        registry = self._registry
        if registry is None:
            raise RegistryError("the hub is starting or stopping; try again in some seconds")
        loop = asyncio.get_running_loop()
        before = await loop.run_in_executor(self._executor, registry.change, tenant, quota, check)
        with contextlib.suppress(RegistryError):  # the change is made; the next look takes it over
            await self._reload(registry)
        return before

    async def close(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        registry, self._registry = self._registry, None
        if registry is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, registry.close)
        self._executor.shutdown()

    async def _reload(self, registry: TenantQuotas) -> None:
        async with self._busy:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, registry.read)
            self._seen = found.number
            self._tenants.share(found.quotas)
            self._named(found.quotas)

    async def _watch(self, registry: TenantQuotas) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._hint.wait(QUOTAS_CHECK_S)
            try:
                if await loop.run_in_executor(self._executor, registry.number) != self._seen:
                    await self._reload(registry)
                self.trouble = None
            except Exception as error:  # keep following after any error
                why = str(error) if isinstance(error, RegistryError) else describe_error(error)
                if self.trouble != why:
                    log.warning("changes of quotas are not in effect: %s", why)
                self.trouble = why
