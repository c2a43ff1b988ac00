"""Writes the landed messages of each tenant into the registry, twice a minute: messages and bytes of each day (UTC).

A crash loses the amounts of the last half minute; the messages themselves are in the lake. A connection that breaks
while the amounts are committed lets them count twice, as it is unknown whether they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from cloud.hub.fleet import FleetState
from cloud.hub.limits import USAGE_WRITE_S
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.usage import TenantAmount
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

DAY_US: Final = 86_400 * 1_000_000

Write = Callable[[Callable[[Registry], None]], Awaitable[None]]
"""Runs work on the registry's thread; raises `RegistryError`."""


class UsageRecorder:
    """Records the usage of tenants. Call `start`, later `close`, inside a running loop."""

    def __init__(self, fleet: FleetState, write: Write, now_us: Callable[[], int]) -> None:
        """`now_us` returns UTC microseconds."""
        self._fleet = fleet
        self._write = write
        self._now_us = now_us
        self._written: dict[str, TenantAmount] = {}
        """Amounts since the start of the hub that are in the registry, by tenant."""
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        """Latest write; it is done also if its caller is cancelled, as is its work on the registry's thread."""

    def start(self) -> None:
        """Start writing."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="usage")

    async def close(self) -> None:
        """Write the rest, and stop. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        await self.write()

    async def write(self) -> None:
        """Write the amounts that are not in the registry. They are written later if that fails."""
        self._writing = asyncio.get_running_loop().create_task(self._write_rest(), name="usage: write")
        await asyncio.shield(self._writing)

    async def _write_rest(self) -> None:
        async with self._lock:
            await self._write_more()

    async def _write_more(self) -> None:
        now = {name: TenantAmount(name, each.rows, each.bytes) for name, each in self._fleet.tenants.items()}
        more = [
            TenantAmount(name, one.messages - before.messages, one.bytes - before.bytes)
            for name, one in now.items()
            if one != (before := self._written.get(name, TenantAmount(name, 0, 0)))
        ]
        if not more:
            return
        day = self._now_us() // DAY_US
        try:
            await self._write(lambda registry: registry.usage.add(day, more))
        except RegistryError as error:
            log.warning("the usage of tenants is written later: %s", error)
            return
        self._written.update({each.tenant: now[each.tenant] for each in more})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(USAGE_WRITE_S)
            try:
                await self.write()
            except Exception:  # an internal error must not end the task silently
                log.exception("recording the usage of tenants failed with an internal error")
