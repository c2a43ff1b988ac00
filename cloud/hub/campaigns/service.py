"""Campaigns of a hub on the event loop: advances them, and answers requests. The registry work runs in a thread with a
connection of its own. Every hub of a registry advances all campaigns; a step that another one made is not repeated."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from cloud.hub.campaigns.limits import CHECK_INTERVAL_S, HALTED_SHOWN_MAX, QUERIES_MAX, STEPS_AT_ONCE_MAX
from cloud.hub.registry.campaign_rows import CampaignRecord, UnknownCampaign
from cloud.hub.registry.campaigns import Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class CampaignsBusy(Exception):
    """Too many requests wait, or the hub starts or stops; the request may be repeated in some seconds."""


class CampaignTables(NamedTuple):
    """Campaigns, and the database that they are in."""

    database: Database
    campaigns: Campaigns


class HubCampaigns:
    """Campaigns of all tenants. `open`, later `close`."""

    def __init__(self, registry: sa.URL, now_us: Callable[[], int], interval_s: float = CHECK_INTERVAL_S) -> None:
        """`now_us`: UTC microseconds; `interval_s` between two looks."""
        self.now_us = now_us
        self.trouble: str | None = None
        """Reason why campaigns do not advance; None if they do."""
        self.halted: Sequence[CampaignRecord] = ()
        """Halted campaigns."""
        self._url = registry
        self._interval_s = interval_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="campaigns")
        self._tables: CampaignTables | None = None
        self._asked = 0
        self._advancing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry, and start to advance campaigns. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        database = await loop.run_in_executor(self._executor, lambda: open_registry(self._url).database)
        self._tables = CampaignTables(database, Campaigns(database))
        self._advancing = loop.create_task(self._advance_all(), name="campaigns")

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        advancing, self._advancing = self._advancing, None
        if advancing is not None:
            advancing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await advancing
        tables, self._tables = self._tables, None
        if tables is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, tables.database.close)
        self._executor.shutdown(wait=False)

    async def ask(self, work: Callable[[CampaignTables], T]) -> T:
        """Run a request on the registry's thread. Raises `CampaignsBusy`, and what `work` raises."""
        if self._asked >= QUERIES_MAX:
            raise CampaignsBusy("the hub is overloaded; try again in some seconds")
        self._asked += 1
        try:
            return await self._in_thread(work)
        finally:
            self._asked -= 1

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[CampaignTables], T]) -> T:
        tables = self._tables
        if tables is None:
            raise CampaignsBusy("the hub is starting or stopping; try again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, tables)

    async def _advance_all(self) -> None:
        while True:
            self._note(await self._look())
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> Exception | None:
        """Advance all campaigns once; return the first fault. A fault of one campaign does not hold up the others."""
        first: Exception | None = None
        try:
            for campaign in await self._in_thread(lambda tables: tables.campaigns.due()):
                try:
                    await self._advance(campaign)
                except Exception as error:
                    error.add_note(f"of campaign {campaign}")
                    first = first or error
            going = await self._in_thread(lambda tables: tables.campaigns.going())
            self._note_halted([each for each in going if each.state is RolloutState.HALTED])
        except Exception as error:  # the task must not end
            first = first or error
        return first

    def _note(self, fault: Exception | None) -> None:
        if fault is None:
            self.trouble = None
            return
        known = isinstance(fault, RegistryError | CampaignsBusy)
        why = str(fault) if known else f"internal error: {type(fault).__name__}"
        if self.trouble != why:
            log.warning("campaigns do not advance: %s", why, exc_info=None if known else fault)
        self.trouble = why

    async def _advance(self, campaign: str) -> None:
        """Advance one campaign as far as it goes now."""
        for _ in range(STEPS_AT_ONCE_MAX):
            try:
                more = await self._in_thread(lambda tables: tables.campaigns.advance(campaign, self.now_us()))
            except UnknownCampaign:  # forgotten since
                return
            if not more:
                return

    def _note_halted(self, halted: Sequence[CampaignRecord]) -> None:
        known = {each.id for each in self.halted}
        for each in halted:
            if each.id not in known:
                log.error("campaign %s is halted: %s", each.id, each.why)
        self.halted = halted[:HALTED_SHOWN_MAX]
