"""The fleet as people look at it: gateways in danger first, and those with one likely cause together.

Danger is what may be lost first: a gateway without room, then one that is away, by the room that is left on its card,
then one that is behind. A page is read from the registry, so every hub shows the same; what is connected here is shown
as it is now. Numbers of the whole fleet are read again after a multiple of the time that they take.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.fleet import FleetState
from cloud.hub.fleet_condition import BEHIND_S, FleetCondition
from cloud.hub.fleet_numbers import FleetNumbers
from cloud.hub.fleet_summary import FleetSummary
from cloud.hub.groups import Key
from cloud.hub.labels import Labels, LabelSelector
from cloud.hub.page_position import decode_position, encode_position, wrong_position
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import GatewayRecord
from cloud.hub.registry.fleet_pages import (
    FleetFilter,
    FleetPlace,
    ListedGateway,
    NeverConnected,
    WrongPlace,
    count_search,
    find_record,
    labels_of_keys,
    read_page,
)
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryThread
from cloud.hub.seen_gateway import SeenGateway, classify, waiting_gateway

FILE_PAGE: Final = 1_000
"""Gateways read at a time for a file of all of them: some 30 ms."""


@dataclass(frozen=True, slots=True)
class GatewayQuery:
    """Which gateways to list, and how."""

    part: str = ""
    """Part of the name, case ignored."""
    state: str = ""
    """A condition; ``danger``: all but those that are well; empty: all."""
    selector: LabelSelector | None = None
    sort: str = "danger"
    down: bool = False


class GatewayListPage(NamedTuple):
    """Page of a list."""

    rows: Sequence[SeenGateway]
    next: str | None
    """Position of the next page; None on the last one."""
    total: int
    """Gateways of the query; of a search, `COUNTED_MAX` at most."""


class FleetView:
    """List of the gateways of one scope."""

    def __init__(
        self,
        fleet: FleetState,
        tenant: str | None,
        pages: RegistryThread,
        numbers: FleetNumbers,
        now_us: Callable[[], int],
    ) -> None:
        """`tenant`: None for all; `pages`: thread that reads pages; `now_us`: UTC microseconds."""
        self._fleet = fleet
        self._tenant = tenant
        self._pages = pages
        self._numbers = numbers
        self._now_us = now_us

    async def page(self, query: GatewayQuery, after: str, limit: int) -> GatewayListPage:
        """Return a page of a query behind a position. Raises `RequestRefused` for a wrong position, `RegistryError`,
        `RegistryClosed`."""
        wanted, place = self._filter(query), _place_of(after) if after else None
        never = await self._numbers.never()
        try:
            found = await self._pages.run(partial(_read_page, wanted=wanted, never=never, after=place, limit=limit + 1))
        except WrongPlace:
            raise wrong_position() from None
        listed = found[:limit]
        rows = [self._seen(one) for one in listed]
        following = encode_position([listed[-1].place.section, *listed[-1].place.values]) if found[limit:] else None
        shown = [one for one in rows if wanted.wants(one.condition)]  # one that is here may have changed since
        return GatewayListPage(shown, following, await self._total(wanted, never))

    async def every(self, query: GatewayQuery) -> AsyncIterator[Sequence[SeenGateway]]:
        """Yield all gateways of a query, some at a time. Raises as `page` does."""
        after: str | None = ""
        while after is not None:
            rows, after, _ = await self.page(query, after, FILE_PAGE)
            yield rows

    async def one(self, key: Key) -> SeenGateway | None:
        """Return one gateway; None if the scope does not have it. Raises `RegistryError`, `RegistryClosed`."""
        if self._tenant not in (None, key[0]):
            return None
        record, labels = await self._pages.run(partial(_read_one, key=key))
        if record is not None:
            return classify(self._fleet.current(record), labels, self._now_us())
        here = self._fleet.gateways.get(key)
        if here is not None and here.session is not None:  # not in the registry yet
            return classify(here, labels, self._now_us())
        waiting = (one for one in await self._numbers.never() if one[:2] == key)
        return next((waiting_gateway(key, one.enrolled_us, labels) for one in waiting), None)

    async def summary(self) -> FleetSummary:
        """Return the gateways in numbers. Raises `RegistryError`, `RegistryClosed`."""
        return await self._numbers.summary(self._tenant)

    def _filter(self, query: GatewayQuery) -> FleetFilter:
        behind_us = self._now_us() - int(BEHIND_S * 1e6)
        return FleetFilter(
            self._tenant, behind_us, query.part, query.state, query.selector, query.sort, query.down
        )  # fmt: skip

    def _seen(self, listed: ListedGateway) -> SeenGateway:
        found = listed.found
        if isinstance(found, NeverConnected):
            return waiting_gateway(found[:2], found.enrolled_us, listed.labels)
        return classify(self._fleet.current(found), listed.labels, self._now_us())

    async def _total(self, wanted: FleetFilter, never: Sequence[NeverConnected]) -> int:
        if wanted.searches:
            counted = await self._pages.run(partial(_count_search, wanted=wanted))
            return counted + sum(wanted.chooses(one) for one in never)
        states = await self._numbers.states(self._tenant)
        return sum(count for state, count in states.items() if wanted.wants(FleetCondition(state)))


class FleetViews:
    """Lists of gateways by scope. `open`, later `close`."""

    def __init__(
        self,
        fleet: FleetState,
        registry: sa.URL,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        hint: ChangeHint | None = None,
    ) -> None:
        """`now_us`: UTC microseconds; `clock`: monotonic seconds; `hint` is given when labels change."""
        self._fleet = fleet
        self._now_us = now_us
        self._pages = RegistryThread("pages of gateways", registry, reading=True)
        self.numbers = FleetNumbers(fleet, registry, now_us=now_us, clock=clock, hint=hint or ChangeHint())

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._pages.open()
        await self.numbers.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self.numbers.close()
        await self._pages.close()

    def of(self, tenant: str | None) -> FleetView:
        """Return the list of a tenant; None: of the whole fleet."""
        return FleetView(self._fleet, tenant, self._pages, self.numbers, self._now_us)


def _place_of(after: str) -> FleetPlace:
    section, *values = decode_position(after, list[int | str]) or [""]
    if type(section) is not int:
        raise wrong_position()
    return FleetPlace(section, tuple(values))


def _read_page(
    database: Database, *, wanted: FleetFilter, never: Sequence[NeverConnected], after: FleetPlace | None, limit: int
) -> list[ListedGateway]:
    return database.transaction(partial(read_page, wanted=wanted, never=never, after=after, limit=limit))


def _read_one(database: Database, *, key: Key) -> tuple[GatewayRecord | None, Labels]:
    return database.transaction(lambda tx: (find_record(tx, key), labels_of_keys(tx, (key,)).get(key, {})))


def _count_search(database: Database, *, wanted: FleetFilter) -> int:
    return database.transaction(partial(count_search, wanted=wanted))
