"""The fleet as people look at it: gateways in danger first, and those with one likely cause together.

Danger is what may be lost first: a gateway without room, then one that is away, by the room that is left on its card,
then one that is behind. A page is read from the registry, so every hub shows the same; what is connected here is shown
as it is now. Numbers of the whole fleet are read again after a multiple of the time that they take.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.bounded_reads import BoundedReads
from cloud.hub.fleet import FleetState
from cloud.hub.fleet_condition import BEHIND_S, FleetCondition
from cloud.hub.fleet_numbers import FleetNumbers
from cloud.hub.fleet_summary import FleetSummary
from cloud.hub.groups import Key
from cloud.hub.labels import Labels, LabelSelector
from cloud.hub.page_position import decode_position, encode_position, wrong_position
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import GatewayRecord, waiting_gateways
from cloud.hub.registry.fleet_pages import (
    BY_KEY,
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
from cloud.hub.registry.gateway_traits import ANY_TRAITS, GatewayTraits
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.seen_gateway import SeenGateway, classify, waiting_gateway
from cloud.lake.faults import RegistryError

FILE_PAGE: Final = 1_000
"""Gateways read at a time for a file of all of them: some 30 ms."""
PAGES_WAITING_MAX: Final = 50
"""Requests for a page that wait at a time: half a second of pages. The next one is refused, and may be repeated."""
SEARCHES_WAITING_MAX: Final = 8
"""Searches that wait at a time: each may read all gateways, 0.2 s for 100 000."""
FILES_WAITING_MAX: Final = 4
"""Files that are read at a time, a part of each in turn."""


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
    connected: bool | None = None
    """State of the connection; None: any."""
    traits: GatewayTraits = ANY_TRAITS


class GatewayListPage(NamedTuple):
    """Page of a list."""

    rows: Sequence[SeenGateway]
    next: str | None
    """Position of the next page; None on the last one."""
    total: int
    """Gateways of the query; of a search, `COUNTED_MAX` at most."""


class FleetReads(NamedTuple):
    """Reads of the list. A search or a file delays no page."""

    pages: BoundedReads
    """Pages in the usual orders, and single gateways: some milliseconds each."""
    searches: BoundedReads
    """Pages that read more than their rows."""
    files: BoundedReads


class FleetView:
    """List of the gateways of one scope."""

    def __init__(
        self,
        fleet: FleetState,
        tenant: str | None,
        reads: FleetReads,
        numbers: FleetNumbers,
        now_us: Callable[[], int],
    ) -> None:
        """`tenant`: None for all; `now_us`: UTC microseconds."""
        self._fleet = fleet
        self._tenant = tenant
        self._reads = reads
        self._numbers = numbers
        self._now_us = now_us

    async def page(self, query: GatewayQuery, after: str, limit: int) -> GatewayListPage:
        """Return a page of a query behind a position. A gateway that has changed since the registry was written is
        shown with its present condition. Raises `RequestRefused` for a wrong position, `RegistryError`."""
        wanted, place = self._filter(query), _place_of(after) if after else None
        never = await self._numbers.never(self._tenant)
        reads = self._reads.pages if wanted.is_quick else self._reads.searches
        try:
            found = await reads.run(partial(_read_page, wanted=wanted, never=never, after=place, limit=limit + 1))
        except WrongPlace:
            raise wrong_position() from None
        listed = found[:limit]
        following = encode_position([listed[-1].place.section, *listed[-1].place.values]) if found[limit:] else None
        return GatewayListPage([self._seen(one) for one in listed], following, await self._total(wanted, never))

    async def every(self, query: GatewayQuery) -> AsyncGenerator[Sequence[SeenGateway], None]:
        """Yield all gateways of a query by tenant and name, some at a time: each is there once, whatever changes
        in between. Raises `ReadsBusy`, `RegistryError`."""
        wanted = self._filter(query)._replace(sort=BY_KEY, down=False)
        with self._reads.files.hold():
            never = await self._numbers.never(self._tenant)
            place: FleetPlace | None = None
            while True:
                work = partial(_read_page, wanted=wanted, never=never, after=place, limit=FILE_PAGE)
                found = await self._reads.files.run(work)
                yield [self._seen(one) for one in found]
                if len(found) < FILE_PAGE:
                    return
                place = found[-1].place

    async def one(self, key: Key) -> SeenGateway | None:
        """Return one gateway; None if the scope does not have it. Raises `RegistryError`."""
        if self._tenant not in (None, key[0]):
            return None
        here = self._fleet.gateways.get(key)
        is_here = here is not None and here.session is not None
        try:
            found = await self._reads.pages.run(partial(_read_one, key=key))
        except RegistryError:
            if here is None or not is_here:
                raise
            return classify(here, {}, self._now_us())
        if found.record is not None:
            return classify(self._fleet.current(found.record), found.labels, self._now_us())
        if here is not None and is_here:  # not in the registry yet
            return classify(here, found.labels, self._now_us())
        return None if found.enrolled_us is None else waiting_gateway(key, found.enrolled_us, found.labels)

    async def summary(self) -> FleetSummary:
        """Return the gateways in numbers. Raises `RegistryError`."""
        return await self._numbers.summary(self._tenant)

    def _filter(self, query: GatewayQuery) -> FleetFilter:
        behind_us = self._now_us() - int(BEHIND_S * 1e6)
        return FleetFilter(
            self._tenant,
            behind_us,
            query.part,
            query.state,
            query.selector,
            query.sort,
            query.down,
            query.connected,
            query.traits,
        )

    def _seen(self, listed: ListedGateway) -> SeenGateway:
        found = listed.found
        if isinstance(found, NeverConnected):
            return waiting_gateway(found[:2], found.enrolled_us, listed.labels)
        return classify(self._fleet.current(found), listed.labels, self._now_us())

    async def _total(self, wanted: FleetFilter, never: Sequence[NeverConnected]) -> int:
        if wanted.searches:
            counted = await self._reads.searches.run(partial(_count_search, wanted=wanted))
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
        self._reads = FleetReads(
            BoundedReads("pages of gateways", registry, PAGES_WAITING_MAX, clock),
            BoundedReads("searches of gateways", registry, SEARCHES_WAITING_MAX, clock),
            BoundedReads("files of gateways", registry, FILES_WAITING_MAX, clock),
        )
        self._numbers = FleetNumbers(fleet, registry, now_us=now_us, clock=clock, hint=hint or ChangeHint())

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        for part in (*self._reads, self._numbers):
            await part.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        for part in (self._numbers, *self._reads):
            await part.close()

    def of(self, tenant: str | None) -> FleetView:
        """Return the list of a tenant; None: of the whole fleet."""
        return FleetView(self._fleet, tenant, self._reads, self._numbers, self._now_us)


def _place_of(after: str) -> FleetPlace:
    section, *values = decode_position(after, list[int | str]) or [""]
    if type(section) is not int:
        raise wrong_position()
    return FleetPlace(section, tuple(values))


def _read_page(
    database: Database, *, wanted: FleetFilter, never: Sequence[NeverConnected], after: FleetPlace | None, limit: int
) -> list[ListedGateway]:
    return database.transaction(partial(read_page, wanted=wanted, never=never, after=after, limit=limit))


class _FoundGateway(NamedTuple):
    """Gateway as the registry has it."""

    record: GatewayRecord | None
    enrolled_us: int | None
    """Time of its enrolment; None if it has a record, or is not known."""
    labels: Labels


def _read_one(database: Database, *, key: Key) -> _FoundGateway:
    def work(tx: sa.Connection) -> _FoundGateway:
        record, labels = find_record(tx, key), labels_of_keys(tx, (key,)).get(key, {})
        enrolled_us = None if record is not None else waiting_gateways(tx, 1, *key).get(key)
        return _FoundGateway(record, enrolled_us, labels)

    return database.transaction(work)


def _count_search(database: Database, *, wanted: FleetFilter) -> int:
    return database.transaction(partial(count_search, wanted=wanted))
