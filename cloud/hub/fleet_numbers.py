"""Numbers of the whole fleet, read from the registry by a thread of their own, and kept for a while.

A read of all gateways takes longer, the more there are. It is made again after a multiple of that time, so that all
hubs together do not keep the registry busy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import sqlalchemy as sa

from cloud.hub.fleet import FleetState
from cloud.hub.fleet_condition import BEHIND_S, FleetCondition
from cloud.hub.fleet_summary import SITE, FleetSummary, find_causes, rank_sites
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import GatewayRecord, waiting_gateways
from cloud.hub.registry.fleet_counts import (
    ConditionCounts,
    VersionCount,
    count_conditions,
    count_label,
    count_versions,
    latest_troubles,
)
from cloud.hub.registry.fleet_pages import NeverConnected, labels_of_keys
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryClosed, RegistryThread, database_of
from cloud.hub.seen_gateway import classify, waiting_gateway

T = TypeVar("T")

FRESH_S: Final = 2.0
"""Age up to which numbers are shown again."""
NEVER_FRESH_S: Final = 20.0
"""Age up to which the gateways that have never connected are shown again, unless a notice says that labels have
changed: an enrolment gives some."""
NUMBERS_REST: Final = 20.0
"""Age up to which numbers are shown again, as a multiple of the time that they took: a hub spends a twentieth of a
connection to the registry on them, while pages are open."""
NEVER_LISTED_MAX: Final = 10_000
"""Gateways of a list that have never connected, the last ones enrolled: 3 MB."""
SLOW_S: Final = 2.0
"""Time of a read from which the result before it is shown in the meantime, and the longest wait for it otherwise."""
SHOWN_S: Final = 60.0
"""Age up to which a result is shown while it is read again, or cannot be; slow reads have twice their usual pause."""
TROUBLES_MAX: Final = 2_000
"""Gateways of each condition, the latest troubles first, among which likely causes are sought: 40 ms."""
VERSIONS_SHOWN_MAX: Final = 50
"""Versions of a fleet, the most frequent ones."""


class KeptRead(Generic[T]):
    """Result of a read that is kept for a while. Callers at the same time share one read, and its failure.

    While a slow read is in progress, callers get the result before it, up to an age.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Callable[[], float], fresh_s: float = FRESH_S) -> None:
        """`clock`: monotonic seconds; `fresh_s`: minimum age at which it is read again."""
        self._read = read
        self._clock = clock
        self._fresh_s = fresh_s
        self._value: tuple[T, float] | None = None
        """Result, and the time of the read."""
        self._error: Exception | None = None
        """Failure of the last read."""
        self._next_s = float("-inf")
        """Time from which it is read again."""
        self._took_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Return the result. Raises what the read has raised, if there is no result that may still be shown."""
        if self._task is None and self._clock() >= self._next_s:
            self._task = asyncio.get_running_loop().create_task(self._refresh())
        task, shown = self._task, self._shown()
        if task is not None and (shown is None or self._took_s < SLOW_S):
            await asyncio.wait([task], timeout=None if shown is None else SLOW_S)
        shown = self._shown()
        if shown is None:
            raise self._error or RegistryClosed("the numbers of gateways are not read now; try again in some seconds")
        return shown[0]

    def drop(self) -> None:
        """Read again soon, `FRESH_S` and the usual multiple of its time after the last read at the earliest."""
        if self._value is not None and self._error is None:
            self._next_s = min(self._next_s, self._value[1] + max(FRESH_S, NUMBERS_REST * self._took_s))

    async def close(self) -> None:
        """End a read that is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _shown(self) -> tuple[T, float] | None:
        """Return the result if it may still be shown."""
        value = self._value
        if value is None or (self._error is not None and self._clock() >= value[1] + SHOWN_S):
            return None
        overdue = self._clock() >= value[1] + max(SHOWN_S, 2 * NUMBERS_REST * self._took_s)
        return None if overdue else value

    async def _refresh(self) -> None:
        began = self._clock()
        try:
            value = await self._read()
        except Exception as error:  # all callers get it
            self._error, self._next_s = error, self._clock() + FRESH_S
        else:
            now = self._clock()
            self._value, self._error, self._took_s = (value, now), None, now - began
            self._next_s = now + max(self._fresh_s, NUMBERS_REST * self._took_s)
        finally:
            self._task = None


class _Numbers(NamedTuple):
    """Parts of a summary that the registry has."""

    sites: Mapping[str, Counter[str]]
    troubles: Sequence[tuple[GatewayRecord, Mapping[str, str]]]
    """Gateways with labels."""
    versions: Sequence[VersionCount]


class FleetNumbers:
    """Numbers of the fleet and of its tenants. `open`, later `close`. Every read raises `RegistryError`."""

    def __init__(
        self,
        fleet: FleetState,
        registry: sa.URL,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        hint: ChangeHint,
    ) -> None:
        """`now_us`: UTC microseconds; `clock`: monotonic seconds; `hint` is given when labels change."""
        self._fleet = fleet
        self._thread = RegistryThread("numbers of gateways", database_of(registry, reading=True))
        self._now_us = now_us
        self._clock = clock
        self._hint = hint
        self._conditions = KeptRead(self._read_conditions, clock)
        self._never: dict[str | None, KeptRead[Sequence[NeverConnected]]] = {}
        """Gateways that have never connected by tenant; None: of the whole fleet."""
        self._summaries: dict[str | None, KeptRead[FleetSummary]] = {}
        """Summaries by tenant; None: of the whole fleet."""

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._thread.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._conditions.close()
        for never in self._never.values():
            await never.close()
        for summary in self._summaries.values():
            await summary.close()
        await self._thread.close()

    async def states(self, tenant: str | None) -> ConditionCounts:
        """Return the gateways of a tenant, or of all, by condition; conditions without gateways are left out."""
        found = await self._conditions.get()
        counts = Counter(found.get(tenant, {})) if tenant is not None else Counter[str]()
        if tenant is None:
            for each in found.values():
                counts.update(each)
        never = len(await self.never(tenant))
        return {**counts, FleetCondition.NEVER.value: never} if never else dict(counts)

    async def never(self, tenant: str | None) -> Sequence[NeverConnected]:
        """Return the gateways of a tenant, or of all, that have enrolled and never connected, `NEVER_LISTED_MAX` at
        most."""
        if self._hint.take():
            for each in self._never.values():
                each.drop()
        kept = self._never.get(tenant)
        if kept is None:
            kept = self._never[tenant] = KeptRead(partial(self._read_never, tenant), self._clock, NEVER_FRESH_S)
        return [one for one in await kept.get() if one[:2] not in self._fleet.gateways]

    async def summary(self, tenant: str | None) -> FleetSummary:
        """Return the numbers of a tenant's gateways, or of all."""
        kept = self._summaries.get(tenant)
        if kept is None:
            kept = self._summaries[tenant] = KeptRead(partial(self._summarize, tenant), self._clock)
        return await kept.get()

    async def _summarize(self, tenant: str | None) -> FleetSummary:
        never = await self.never(tenant)
        states = await self.states(tenant)
        found = await self._thread.run(partial(_read_numbers, tenant=tenant, behind_us=self._behind_us))
        sites = {value: Counter(counts) for value, counts in found.sites.items()}
        for one in never:
            if SITE in one.labels:
                sites.setdefault(one.labels[SITE], Counter())[FleetCondition.NEVER.value] += 1
        newest = sorted(never, key=lambda one: -one.enrolled_us)[:TROUBLES_MAX]
        seen = [waiting_gateway(one[:2], one.enrolled_us, one.labels) for one in newest]
        now_us = self._now_us()
        seen += [classify(self._fleet.current(record), labels, now_us) for record, labels in found.troubles]
        causes = await asyncio.to_thread(find_causes, seen)
        versions = [{"version": each.version, "count": each.gateways} for each in found.versions]
        return FleetSummary(sum(states.values()), states, causes, rank_sites(states, sites), versions)

    @property
    def _behind_us(self) -> int:
        return self._now_us() - int(BEHIND_S * 1e6)

    async def _read_conditions(self) -> Mapping[str, ConditionCounts]:
        return await self._thread.run(partial(_read_conditions, behind_us=self._behind_us))

    async def _read_never(self, tenant: str | None) -> Sequence[NeverConnected]:
        return await self._thread.run(partial(_read_never, tenant=tenant))


def _read_conditions(database: Database, *, behind_us: int) -> Mapping[str, ConditionCounts]:
    return database.transaction(partial(count_conditions, behind_us=behind_us))


def _read_never(database: Database, *, tenant: str | None) -> Sequence[NeverConnected]:
    def work(tx: sa.Connection) -> Sequence[NeverConnected]:
        found = waiting_gateways(tx, NEVER_LISTED_MAX, tenant)
        labels = labels_of_keys(tx, list(found))
        return [NeverConnected(*key, enrolled_us, labels.get(key, {})) for key, enrolled_us in found.items()]

    return database.transaction(work)


def _read_numbers(database: Database, *, tenant: str | None, behind_us: int) -> _Numbers:
    def work(tx: sa.Connection) -> _Numbers:
        records = latest_troubles(tx, tenant, behind_us, TROUBLES_MAX)
        labels = labels_of_keys(tx, [(each.tenant, each.name) for each in records])
        troubles = [(each, labels.get((each.tenant, each.name), {})) for each in records]
        versions = count_versions(tx, tenant, VERSIONS_SHOWN_MAX)
        return _Numbers(count_label(tx, tenant, SITE, behind_us), troubles, versions)

    return database.transaction(work)
