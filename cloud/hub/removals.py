"""Removals of tenants at this hub: continues those of the registry, and ends what this hub has of such a tenant.

Every hub takes part: it closes the connections of the tenant, its address space and its folder of stored messages. The
steps in the registry may be taken by any of them, also by some at once, because each is one transaction that only
removes. A hub that was away during a removal deletes its folder at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa

from cloud.hub.acceptor import Acceptor, leaving_words
from cloud.hub.artefacts.service import HubArtefacts
from cloud.hub.peers import tenant_of_user
from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.tenant_removal import REMOVAL_S_MIN, RemovalStep, TenantRemoval, TenantRemovals
from cloud.hub.spaces import Spaces
from cloud.lake.faults import RegistryError
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot, CredentialStore
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""Interval of looks for removals, without a notice."""
FRESH_S: Final = 10.0
"""Age of the last look from which on changed users are not served before the next one; shorter than `REMOVAL_S_MIN`."""
T = TypeVar("T")
_NOT_OPEN: Final = "the hub is starting or stopping; try again in some seconds"


class ChangeableUsers(Protocol):
    """Users of a hub, in a file or in the registry."""

    async def change(self, change: Callable[[Any], CredentialSnapshot]) -> None:
        """Run `change` with the store of the users, and apply the users that it returns. Raises `CredentialsError`."""


class RemovalParts(NamedTuple):
    """Parts of a hub that have something of a tenant."""

    acceptor: Acceptor
    spaces: Spaces
    artefacts: HubArtefacts
    users: ChangeableUsers | None
    """None where the hub has no users of its own."""
    known_users: Callable[[], Mapping[str, object]]
    """Users by name."""
    follow: Callable[[str], None]
    """Opens the address space of a tenant that has users."""


class HubTenantRemovals:
    """Removals of tenants. `open`, then `start`, later `close`; inside a running loop."""

    def __init__(
        self, registry: sa.URL, hint: ChangeHint, now_us: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """`hint` is given when another hub or process begins or ends a removal. `now_us`: UTC microseconds; `clock`:
        monotonic seconds."""
        self.trouble: str | None = None
        """Reason why removals do not go on; None if they do."""
        self._url = registry
        self._hint = hint
        self._now_us = now_us
        self._clock = clock
        self._known: Mapping[str, TenantRemoval] = {}
        self._seen_s: dict[tuple[str, int], float] = {}
        """Time when this hub first saw each removal that goes on."""
        self._read_s = float("-inf")
        """Time of the last read of the removals."""
        self._must_read = False
        self._changes = 0
        """Changes of users that need a look."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="removals")
        self._database: Database | None = None
        """None before the first change."""
        self._reading: Database | None = None
        """Looks for removals, and delays no landing."""
        self._parts: RemovalParts
        self._cleaned: Mapping[str, int] | None = None
        """Removals after which the folders here are deleted."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry, and read its removals. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._reading = await loop.run_in_executor(self._executor, lambda: Database(self._url, reading=True))
        await self._read()

    def start(self, parts: RemovalParts) -> None:
        """Start to continue removals."""
        self._parts = parts
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="removals of tenants")

    async def close(self) -> None:
        """End, after the step that runs. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        opened, self._database, self._reading = (self._database, self._reading), None, None
        for database in opened:
            if database is not None:
                await asyncio.get_running_loop().run_in_executor(self._executor, database.close)
        self._executor.shutdown()

    def is_leaving(self, tenant: str) -> bool:
        """Return whether a tenant is being removed."""
        found = self._known.get(tenant)
        return found is not None and found.ended_at is None

    @property
    def is_current(self) -> bool:
        """Return False if users have changed while the removals were not known for some time: one may be of a tenant
        with the name of a removed one, of which this hub has the address space."""
        return not self._must_read

    def users_changed(self) -> None:
        """Note that the users may have changed."""
        if self._clock() - self._read_s > FRESH_S:
            self._must_read = True
            self._changes += 1
            self._hint.give()

    def is_removed(self, tenant: str) -> bool:
        """Return whether a tenant was removed; one of its name may be there again."""
        found = self._known.get(tenant)
        return found is not None and found.ended_at is not None and found.number > 0

    def folder_of(self, tenant: str) -> str | None:
        """Return the name of the folder with the stored messages of a tenant; None while it is being removed."""
        found = self._known.get(tenant)
        if found is None or found.number == 0:
            return tenant
        return None if found.ended_at is None else f"{tenant}.{found.number}"

    async def begin(self, tenant: str, by: str, *, forced: bool) -> TenantRemoval:
        """Begin a removal, which then goes on. Raises `TenantNotRemoved`, `RegistryError`."""
        more = self._count_elsewhere(tenant)
        begun = await self._change(lambda found: found.begin(tenant, by, self._now_us(), forced=forced, more=more))
        await self._read()
        self._hint.give()
        return begun

    async def show(self, tenant: str) -> tuple[TenantRemoval | None, dict[str, int]]:
        """Return the last removal of a tenant, and the number of its things by kind. Raises `RegistryError`."""
        await self._read()
        found = await self._look_up(lambda removals: removals.contents(tenant, self._now_us()))
        return self._known.get(tenant), {**found, **self._count_elsewhere(tenant)}

    async def look(self) -> None:
        """Continue the removals that go on, and end what this hub has of removed tenants. Raises `RegistryError`,
        `CredentialsError`, OSError."""
        await self._read()
        for removal in [each for each in self._known.values() if each.ended_at is None]:
            await self._continue(removal)
        await self._clean()

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _look_up(self, work: Callable[[TenantRemovals], T]) -> T:
        """Run a query on the registry's thread. Raises `RegistryError`."""
        reading = self._reading
        if reading is None:
            raise RegistryError(_NOT_OPEN)
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(TenantRemovals(reading)))

    async def _change(self, work: Callable[[TenantRemovals], T]) -> T:
        """Run a change on the registry's thread. Raises `RegistryError`."""

        def run() -> T:
            if self._reading is None:
                raise RegistryError(_NOT_OPEN)
            self._database = self._database or open_registry(self._url).database
            return work(TenantRemovals(self._database))

        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def _count_elsewhere(self, tenant: str) -> dict[str, int]:
        """Count the users of this hub, who are not all in the registry."""
        if self._parts.users is None:
            return {}
        count = sum(tenant_of_user(name) == tenant for name in self._parts.known_users())
        return {"users": count} if count else {}

    async def _read(self) -> None:
        begun_s, changes = self._clock(), self._changes
        found = await self._look_up(lambda removals: removals.all())
        if changes == self._changes:  # none came while it was read
            self._must_read = False
        self._known, self._read_s = {each.tenant: each for each in found}, begun_s
        running = {(each.tenant, each.number) for each in found if each.ended_at is None}
        self._seen_s = {key: self._seen_s.get(key, begun_s) for key in running}

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
                self.trouble = None
            except Exception as error:  # keep following after any error
                known = isinstance(error, RegistryError | CredentialsError | OSError)
                why = str(error) if known else describe_error(error)
                if self.trouble != why:
                    log.warning("removals of tenants do not go on: %s", why)
                self.trouble = why
            await self._hint.wait(CHECK_S)

    async def _continue(self, removal: TenantRemoval) -> None:
        """Take steps of a removal until it ends, or has to wait."""
        tenant = removal.tenant
        self._parts.acceptor.end_connections(tenant, leaving_words(tenant))
        if removal.forced:
            await self._end_users(tenant)
        seen_s = self._seen_s.get((tenant, removal.number), self._clock())
        may_end = self._clock() - seen_s >= REMOVAL_S_MIN

        def step(removals: TenantRemovals) -> RemovalStep:
            return removals.step(tenant, self._now_us(), may_end=may_end)

        begun_s = self._clock()
        while (result := await self._change(step)) is RemovalStep.MORE:
            await asyncio.sleep(self._clock() - begun_s)  # half of the time is for the landings
            begun_s = self._clock()
        if result is RemovalStep.WAITS:
            await self._parts.artefacts.finish_removals()
            return
        await self._read()
        words = "is removed" if result is RemovalStep.ENDED else "stays: something was made in it during its removal"
        log.info("tenant %s %s", tenant, words)

    async def _end_users(self, tenant: str) -> None:
        """Remove the users of a tenant. Raises `CredentialsError`."""
        names = [name for name in self._parts.known_users() if tenant_of_user(name) == tenant]

        def change(store: CredentialStore) -> CredentialSnapshot:
            store.load()
            store.remove(names)
            return store.load()

        if names and self._parts.users is not None:
            await self._parts.users.change(change)

    async def _clean(self) -> None:
        """Close address spaces of removed tenants, and delete their folders. Raises OSError."""
        ended = {name: each.number for name, each in self._known.items() if each.ended_at is not None}
        if ended == self._cleaned:
            return
        removed = {name: number for name, number in ended.items() if number}
        older = [tenant for tenant in removed if await self._parts.spaces.is_in_older_folder(tenant)]
        for tenant in older:
            self._parts.acceptor.end_connections(tenant, leaving_words(tenant))
        if any(self._parts.acceptor.applications(tenant) for tenant in older):
            return  # their sessions use the space until their connections have ended
        for tenant in older:
            self._parts.spaces.close_older(tenant)
        for tenant in ended:
            self._parts.follow(tenant)  # one of its name may have users
        for folder in await asyncio.to_thread(self._parts.spaces.older_folders, removed):
            await asyncio.to_thread(shutil.rmtree, folder)
            log.info("deleted the stored messages of a removed tenant: %s", folder.name)
        self._cleaned = ended
