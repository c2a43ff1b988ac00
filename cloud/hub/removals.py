"""Removed tenants, as this hub knows them, and the tasks that look for new ones and work on them.

Two tasks: one looks for removals, and ends the connections of a removed tenant; nothing holds it up. The other works
(`cloud.hub.removal_work`). A hub that cannot read the registry goes on with the removals that it knows. What it stores
for applications of a removed tenant until then is put aside, not deleted, when it can read the registry again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import sqlalchemy as sa

from cloud.hub.peers import tenant_of_user
from cloud.hub.registry.audit import AuditEntry
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.tenant_removal import RemovalStep, StepResult, TenantRemoval, TenantRemovals
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.hub.removal_work import PAUSE_S_MAX, RemovalParts, RemovalWork
from cloud.hub.roles import has_fleet_right
from cloud.hub.tenants import TenantRemoved
from cloud.lake.faults import RegistryError
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Grant
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""Interval of looks for removals, without a notice."""
ENDING_S: Final = 10.0
"""Longest time for the landing of what gateways of a removed tenant have sent before."""
ENDING_CHECK_S: Final = 0.2
AGAIN_S: Final = 600.0
"""Interval of looks for ended removals with gateways that a hub has served since, and for old folders."""
ASK_OPERATOR: Final = "ask the operator of the hub for a user of another tenant"
T = TypeVar("T")


class HubTenantRemovals:
    """Removals of tenants. `open`, then `start`, later `close`; inside a running loop."""

    def __init__(
        self, registry: sa.URL, hub: str, hint: ChangeHint, now_us: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """`hub`: writer id. `hint` is given when another hub or process begins or ends a removal. `now_us`: UTC
        microseconds; `clock`: monotonic seconds."""
        self.trouble: str | None = None
        """Reason why removals do not go on; None if they do."""
        self._hub = hub
        self._hint = hint
        self._work_hint = ChangeHint()
        self._now_us = now_us
        self._clock = clock
        self._known: dict[str, TenantRemoval] = {}
        self._number, self._connections = 0, 0
        """Number of the last change that is known, and connections to the registry until then."""
        self._lost: set[str] = set()
        """Tenants with a removal that the registry does not know any more: they stay refused, and nothing is done."""
        self._ending: dict[str, float] = {}
        """Tenants with open connections here, and when their removal was first seen."""
        self._busy = asyncio.Lock()
        self._reading = RegistryThread("removals-reading", database_of(registry, reading=True))
        self._writing = RegistryThread("removals", database_of(registry))
        self._writes = False
        """The thread for changes is open: most hubs never remove a tenant."""
        self._opening = asyncio.Lock()
        self._again_s = float("-inf")
        self._parts: RemovalParts | None = None
        self._work: RemovalWork | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open the registry, and read its removals. Raises `RegistryError`."""
        await self._reading.open()
        await self.read()

    def start(self, parts: RemovalParts) -> None:
        """Start to follow removals, and to work on them."""
        self.use(parts)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._watch(), name="looks for removed tenants"),
            loop.create_task(self._follow(), name="removals of tenants"),
        ]

    def use(self, parts: RemovalParts) -> None:
        """Set the parts of this hub."""
        self._parts, self._work = parts, RemovalWork(parts, self._step, self._now_us, self._clock)

    async def close(self) -> None:
        """End, after the step that runs. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._reading.close()
        await self._writing.close()

    def is_removed(self, tenant: str) -> bool:
        """Return whether a tenant was removed, or is being removed."""
        return tenant in self._known

    def has_ended(self, tenant: str) -> bool:
        """Return whether nothing of a removed tenant is left."""
        found = self._known.get(tenant)
        return found is not None and found.ended_at is not None

    def check_grant(self, grant: Grant) -> None:
        """Check over HTTP that the tenant of a client was not removed. One with rights on every tenant is served, so
        that no operator is locked out of the hub. Raises `RequestRefused`."""
        tenant = tenant_of_user(grant.user)
        if self.is_removed(tenant) and not has_fleet_right(grant.rules):
            raise RequestRefused(403, str(TenantRemoved(tenant)), code="tenant-removed", next_step=ASK_OPERATOR)

    async def begin(self, tenant: str, line: AuditEntry, *, forced: bool) -> TenantRemoval:
        """Begin a removal, which then goes on. Raises `TenantNotRemoved`, `RegistryError`."""
        more = self._elsewhere(tenant)
        known = self._parts is not None and self._parts.spaces.get(tenant) is not None
        begun = await self._change(lambda found: found.begin(tenant, line, forced=forced, more=more, known=known))
        await self.read()
        self._work_hint.give()
        return begun

    async def show(self, tenant: str) -> tuple[TenantRemoval | None, dict[str, int]]:
        """Return the removal of a tenant, and the number of its things by kind. Raises `RegistryError`."""
        await self.read()
        found = await self._look_up(lambda removals: removals.contents(tenant, self._now_us()))
        more = self._elsewhere(tenant)
        return self._known.get(tenant), {**found, **{kind: found.get(kind, 0) + more[kind] for kind in more}}

    async def read(self) -> None:
        """Read the changes of removals, and end the connections of tenants that were removed. Raises
        `RegistryError`."""
        async with self._busy:
            found = await self._look_up(lambda removals: removals.changes(self._number, self._connections))
            for each in found.removals:
                if each.tenant not in self._known:
                    self._ending[each.tenant] = self._clock()
                self._known[each.tenant] = each
            self._number, self._connections = found.number, found.connections
            there = {each.tenant for each in found.removals}
            lost = (self._known.keys() - there) if found.whole else self._lost - there
            if new := sorted(lost - self._lost):
                words = "the registry is an older copy, which does not know the removal of %s: %s"
                step = "remove these tenants again, or restart this hub to serve them"
                log.warning(words, ", ".join(new), step)
            self._lost = lost
        self.end_connections()

    def end_connections(self) -> None:
        """End the connections of removed tenants; those of gateways when what they have sent is answered."""
        if self._parts is None:
            self._ending.clear()  # no connection is open before the start
        for tenant, since_s in list(self._ending.items()):
            late = self._clock() - since_s >= ENDING_S
            if self._parts is not None and not self._parts.acceptor.end_removed(tenant, late=late):
                del self._ending[tenant]

    async def look(self) -> bool:
        """Take a turn of the work on all removals; return whether there is more to do now."""
        more, why = False, None
        if self._work is not None:
            going = [each for each in self._known.values() if each.tenant not in self._lost]
            more, why = await self._work.look(going, self._ending)
        try:
            await self._look_again()
        except Exception as error:  # the next look tries again
            why = why or (str(error) if isinstance(error, RegistryError | OSError) else describe_error(error))
        if why is not None and why != self.trouble:
            log.warning("a removal of a tenant does not go on: %s", why)
        self.trouble = why
        return more

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _look_up(self, work: Callable[[TenantRemovals], T]) -> T:
        return await self._reading.run(lambda database: work(TenantRemovals(database)))

    async def _change(self, work: Callable[[TenantRemovals], T]) -> T:
        async with self._opening:
            if not self._writes:
                await self._writing.open()
                self._writes = True
        return await self._writing.run(lambda database: work(TenantRemovals(database)))

    async def _step(self, tenant: str, more: Mapping[str, int]) -> StepResult:
        result = await self._change(lambda found: found.step(tenant, self._hub, self._now_us(), more))
        if result.step is RemovalStep.ENDED:
            self._hint.give()
        return result

    def _elsewhere(self, tenant: str) -> dict[str, int]:
        """Return what is in a tenant at this hub and not in the registry, by kind."""
        if self._parts is None:
            return {}
        space = self._parts.spaces.get(tenant)
        stored = space.stored_bytes if space is not None else 0
        found = {**self._parts.count_users(tenant), "stored-bytes-of-applications": stored}
        return {kind: count for kind, count in found.items() if count}

    async def _look_again(self) -> None:
        """Continue removals of tenants that were used again, and delete old folders. Raises `RegistryError`,
        OSError."""
        if self._parts is None or self._clock() - self._again_s < AGAIN_S:
            return
        self._again_s = self._clock() - AGAIN_S + PAUSE_S_MAX  # if it fails, it is tried again soon
        if self._known and (used := await self._look_up(TenantRemovals.used_again)):
            await self._change(lambda removals: removals.go_on(used))
            self._hint.give()
        gone = frozenset(self._known) - self._lost
        await asyncio.to_thread(self._parts.folders.delete_old, self._now_us(), gone.__contains__)
        self._again_s = self._clock()

    async def _watch(self) -> None:
        while True:
            try:
                await self.read()
            except Exception as error:  # keep looking after any error
                log.debug("removals of tenants are not read: %s", describe_error(error))
                self.end_connections()
            self._work_hint.give()
            await self._hint.wait(ENDING_CHECK_S if self._ending else CHECK_S)

    async def _follow(self) -> None:
        while True:
            if not await self.look():
                await self._work_hint.wait(CHECK_S)
