"""Work of one hub on removals of tenants: steps in the registry, and what this hub itself has of a removed tenant.

Every hub closes the address space of the tenant and puts its folder aside. The steps in the registry are taken by one
hub at a time. A tenant that cannot go on holds up no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from cloud.hub.acceptor import Acceptor
from cloud.hub.peers import tenant_of_user
from cloud.hub.registry.tenant_contents import FLEET_USERS
from cloud.hub.registry.tenant_removal import LEASE_S, RemovalStep, StepResult, TenantRemoval
from cloud.hub.removed_folders import RemovedFolders
from cloud.hub.roles import has_fleet_right
from cloud.hub.spaces import Spaces
from cloud.lake.faults import RegistryError
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot, CredentialStore, CredentialUser
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

TURN_S: Final = 2.0
"""Time for one tenant before the next one has its turn."""
PAUSE_S: Final = 2.0
"""First pause of a removal that waits; it doubles up to `PAUSE_S_MAX`, as each look at a large tenant takes time."""
PAUSE_S_MAX: Final = LEASE_S / 2
"""Longest pause: shorter than the lease, so the same hub goes on."""
STUCK_S: Final = 3_600.0
"""Time from which on a removal that waits is a problem of the hub."""


class UserFile(Protocol):
    """Users of a hub in a file."""

    async def change(self, change: Callable[[CredentialStore], CredentialSnapshot]) -> None:
        """Run `change` with the store of the users, and apply the users that it returns. Raises `CredentialsError`."""


class RemovableArtefacts(Protocol):
    """Artefacts of a hub."""

    async def finish_removals(self) -> None:
        """Delete the images of artefacts that are marked as removed, then their rows."""


class RemovalParts(NamedTuple):
    """Parts of a hub that have something of a tenant."""

    acceptor: Acceptor
    spaces: Spaces
    folders: RemovedFolders
    artefacts: RemovableArtefacts
    file: UserFile | None
    """None where the registry or an issuer has the users."""
    users: Callable[[], Mapping[str, CredentialUser]]
    """Users of the file by name."""

    def count_users(self, tenant: str) -> dict[str, int]:
        """Return the number of users of a tenant in the file, by kind."""
        mine = self.users_of(tenant)
        return {"users": len(mine), FLEET_USERS: sum(has_fleet_right(each.rules) for each in mine.values())}

    def users_of(self, tenant: str) -> dict[str, CredentialUser]:
        """Return the users of a tenant in the file."""
        if self.file is None:
            return {}
        return {name: user for name, user in self.users().items() if tenant_of_user(name) == tenant}


Step = Callable[[str, Mapping[str, int]], Awaitable[StepResult]]
"""Takes a step of the removal of a tenant in the registry, see `TenantRemovals.step`."""


class RemovalWork:
    """Work on all removals, one after the other."""

    def __init__(self, parts: RemovalParts, step: Step, now_us: Callable[[], int], clock: Callable[[], float]) -> None:
        """`now_us`: UTC microseconds; `clock`: monotonic seconds."""
        self._parts = parts
        self._step = step
        self._now_us = now_us
        self._clock = clock
        self._settled: set[str] = set()
        """Tenants of which this hub has nothing any more."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """Time of the next look at a removal that waits, and the length of the pause."""
        self._waiting: dict[str, tuple[float, str]] = {}
        """Since when each removal waits here, and for what."""

    async def look(self, removals: Iterable[TenantRemoval], ending: Container[str]) -> tuple[bool, str | None]:
        """Take a turn for each removal. Return whether there is more to do now, and why one does not go on (None if
        all do). `ending`: tenants with connections that end; no step is taken before, as it revokes certificates."""
        more, troubles = False, []
        for removal in list(removals):
            tenant = removal.tenant
            if removal.ended_at is not None:
                self._waiting.pop(tenant, None)
                self._pauses.pop(tenant, None)
            turns: list[Callable[[str], Awaitable[bool]]] = [self._settle_once]
            if removal.ended_at is None and tenant not in ending:
                turns += [self._end_users, self._take_turn]
            for turn in turns:
                try:
                    more |= await turn(tenant)
                except Exception as error:  # its other work, and the other tenants, go on
                    known = isinstance(error, RegistryError | CredentialsError | OSError)
                    troubles.append(f"tenant {tenant}: {error if known else describe_error(error)}")
        stuck = [why for since_s, why in self._waiting.values() if self._clock() - since_s >= STUCK_S]
        return more, next(iter([*troubles, *stuck]), None)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _settle_once(self, tenant: str) -> bool:
        """Put the folder of a removed tenant aside, once; return False, as nothing is to be done at once."""
        if tenant not in self._settled and await self._settle(tenant):
            self._settled.add(tenant)
        return False

    async def _settle(self, tenant: str) -> bool:
        """Close the address space of a removed tenant and put its folder aside; return False while applications use
        it. Raises OSError."""
        spaces, acceptor = self._parts.spaces, self._parts.acceptor
        await spaces.wait_opened(tenant)
        for _ in range(2):
            if acceptor.applications(tenant):
                return False
            await asyncio.sleep(0)  # let dropped connections detach from their sessions
        spaces.close(tenant)
        await asyncio.to_thread(self._parts.folders.put_aside, tenant, self._now_us())
        return True

    async def _take_turn(self, tenant: str) -> bool:
        """Take steps for `TURN_S`; return whether there is more to do now."""
        due_s, pause_s = self._pauses.get(tenant, (float("-inf"), PAUSE_S))
        begun_s = self._clock()
        if begun_s < due_s:
            return False
        result, took_s = await self._step_once(tenant)
        while result.step is RemovalStep.MORE and self._clock() - begun_s < TURN_S:
            await asyncio.sleep(took_s)  # half of the time is for the landings
            result, took_s = await self._step_once(tenant)
        if result.step is RemovalStep.WAITS:
            self._pauses[tenant] = (self._clock() + pause_s, min(2 * pause_s, PAUSE_S_MAX))
            what = ", ".join(f"{count} {kind}" for kind, count in result.left.items())
            since_s = self._waiting.get(tenant, (self._clock(), ""))[0]
            self._waiting[tenant] = (since_s, f"tenant {tenant} still has {what}")
            await self._parts.artefacts.finish_removals()
            return False
        self._waiting.pop(tenant, None)
        self._pauses.pop(tenant, None)
        if result.step in (RemovalStep.HELD, RemovalStep.NONE):
            self._pauses[tenant] = (self._clock() + LEASE_S, PAUSE_S)
        elif result.step is RemovalStep.ENDED:
            log.info("tenant %s is removed", tenant)
        return result.step is RemovalStep.MORE

    async def _step_once(self, tenant: str) -> tuple[StepResult, float]:
        begun_s = self._clock()
        result = await self._step(tenant, self._parts.count_users(tenant))
        return result, self._clock() - begun_s

    async def _end_users(self, tenant: str) -> bool:
        """Remove the users of a tenant from the file, except those with rights on every tenant; return False, as
        nothing is to be done at once. Raises `CredentialsError`."""

        def change(store: CredentialStore) -> CredentialSnapshot:
            found = store.load().users  # the rights of one may have changed
            store.remove([name for name in names if name in found and not has_fleet_right(found[name].rules)])
            return store.load()

        names = [name for name, user in self._parts.users_of(tenant).items() if not has_fleet_right(user.rules)]
        if names and self._parts.file is not None:
            await self._parts.file.change(change)
        return False
