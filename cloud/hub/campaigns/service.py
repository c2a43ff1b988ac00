"""Campaigns of a hub on the event loop: advances them, and answers requests.

The registry work runs in three threads with connections of their own, for changes, queries and looks: they delay no
landing, and a long query delays no look. Every hub of a registry advances all campaigns; a step that another one made
is not repeated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.campaigns.limits import (
    CHECK_INTERVAL_S,
    DONE_AT_ONCE_MAX,
    HALTED_SHOWN_MAX,
    QUERIES_MAX,
    SETTLING_S,
    STEPS_AT_ONCE_MAX,
)
from cloud.hub.registry.campaign_rows import CampaignRecord, UnknownCampaign
from cloud.hub.registry.campaigns import Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class CampaignsBusy(Exception):
    """Too many requests wait; the request may be repeated in some seconds."""


class HubCampaigns:
    """Campaigns of all tenants. `open`, later `close`."""

    def __init__(self, registry: sa.URL, interval_s: float = CHECK_INTERVAL_S) -> None:
        """`interval_s` between two looks."""
        self.halted: Sequence[CampaignRecord] = ()
        """Halted campaigns, `HALTED_SHOWN_MAX` of them."""
        self.figures: Mapping[RolloutState, int] = {}
        """Number of campaigns that run, are paused or halted, by state."""
        self._halted: frozenset[str] = frozenset()
        """Ids of all halted campaigns."""
        self._writer = RegistryThread("campaigns", database_of(registry))
        self._reader = RegistryThread("campaigns-reading", database_of(registry, reading=True))
        self._looker = RegistryThread("campaigns-looking", database_of(registry, reading=True))
        self._turn = 0
        """Looks so far: each examines other campaigns of those that are done."""
        self.starting = asyncio.Lock()
        """Held by the start of a campaign: the devices that one chooses take up to 100 MB."""
        self._asked = 0
        self._settled_at = time.monotonic() + SETTLING_S
        """Time from which silence of a device is its failure."""
        self._advancing = PeriodicTask(
            "campaigns", self.look, interval_s,
            log=log, failed="campaigns do not advance", expected=(RegistryError,),
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why campaigns do not advance; None if they do."""
        return self._advancing.trouble

    async def open(self) -> None:
        """Open the registry, and start to advance campaigns. Raises `RegistryError`."""
        await self._writer.open()
        await self._reader.open()
        await self._looker.open()
        self._advancing.start()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._advancing.stop()
        await self._looker.close()
        await self._reader.close()
        await self._writer.close()

    async def read(self, work: Callable[[Database], T]) -> T:
        """Run a query on the thread that reads. Raises `CampaignsBusy`, `RegistryClosed`, and what `work` raises."""
        return await self._within_limit(self._reader, work)

    async def change(self, work: Callable[[Database], T]) -> T:
        """Run a change on the thread that writes. Raises as `read`."""
        return await self._within_limit(self._writer, work)

    async def look(self) -> None:
        """Advance all campaigns once. A fault of one campaign does not hold up the others; the first fault is raised at
        the end."""
        first: Exception | None = None
        try:
            for campaign in await self._looker.run(self._due):
                try:
                    await self._advance(campaign)
                except Exception as error:
                    error.add_note(f"of campaign {campaign}")
                    first = first or error
            await self._forget_old()
            going = await self._looker.run(lambda database: Campaigns(database).going())
            self.figures = Counter(each.state for each in going)
            self._note_halted([each for each in going if each.state is RolloutState.HALTED])
            if first is not None:
                raise first
        except RegistryError:  # reports could not be stored either
            self._settled_at = time.monotonic() + SETTLING_S
            raise

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _within_limit(self, thread: RegistryThread[Database], work: Callable[[Database], T]) -> T:
        if self._asked >= QUERIES_MAX:
            raise CampaignsBusy("the hub is overloaded; try again in some seconds")
        self._asked += 1
        try:
            return await thread.run(work)
        finally:
            self._asked -= 1

    async def _advance(self, campaign: str) -> None:
        """Advance one campaign as far as it goes now."""
        settling = self._is_settling
        for _ in range(STEPS_AT_ONCE_MAX):
            try:
                more = await self._writer.run(lambda database: Campaigns(database).advance(campaign, settling=settling))
            except UnknownCampaign:  # forgotten since
                return
            if not more:
                return

    @property
    def _is_settling(self) -> bool:
        return time.monotonic() < self._settled_at

    def _due(self, database: Database) -> list[str]:
        """Return the campaigns with something to do: a look does not delay those who write."""
        campaigns, self._turn = Campaigns(database), self._turn + 1
        every = campaigns.offering()
        done = [each.id for each in every if each.done]
        first = self._turn * DONE_AT_ONCE_MAX % max(len(done), 1)
        seen = [*(each.id for each in every if not each.done), *[*done[first:], *done[:first]][:DONE_AT_ONCE_MAX]]
        return [each for each in seen if self._has_step(campaigns, each)]

    def _has_step(self, campaigns: Campaigns, campaign: str) -> bool:
        """Return whether a campaign may have a step. A fault is left to its own step, so it does not hold up others."""
        try:
            return campaigns.has_step(campaign, settling=self._is_settling)
        except RegistryError:
            raise
        except Exception:
            return True

    async def _forget_old(self) -> None:
        """Delete old campaigns, some devices in each transaction."""
        if not await self._looker.run(lambda database: Campaigns(database).has_old()):
            return
        for _ in range(STEPS_AT_ONCE_MAX):
            if not await self._writer.run(lambda database: Campaigns(database).forget_old()):
                return

    def _note_halted(self, halted: Sequence[CampaignRecord]) -> None:
        for each in halted:
            if each.id not in self._halted:
                log.error("campaign %s is halted: %s", each.id, each.why)
        self._halted = frozenset(each.id for each in halted)
        self.halted = halted[:HALTED_SHOWN_MAX]
