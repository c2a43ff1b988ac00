"""Sorted and filtered pages of a gateway's addresses, of which there may be very many.

Most of their state is rows of the store. So the list is read in slices, between which other connections are served,
and all pages share it for some seconds. Rates are those between two lists.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from edge.appliance.addresses.documents import AddressDocument, AddressLevel, AddressPage, AddressTreePage
from edge.appliance.addresses.sources import AddressRow, AddressSources
from edge.appliance.addresses.tree import level_of, page_of_level
from edge.appliance.paging import SLICE_ROWS, RankedRow, WorkSlices, page_of, sort_rows

FRESH_S: Final = 4.0
"""Age up to which a list is shown again; a page asks every 5 s."""

UNUSED_S: Final = 30.0
"""Seconds after which an unused list is dropped."""

RATED_S: Final = 60.0
"""Age up to which the counts of a list are the base of rates."""

LISTED_MAX: Final = 20_000
"""Rows of a list: about 8 MB while a page shows it. `AddressPage.left_out` says how many more there are."""

SLICE: Final = 100
"""Rows read at a time, about half a millisecond."""

ORDERS_KEPT_MAX: Final = 4
"""Sorted and filtered orders of a list that are kept."""

LEVELS_KEPT_MAX: Final = 16
"""Levels of the tree that are kept: a page shows some open branches, and reads each of them."""


class _Counts(NamedTuple):
    received: int
    delivered: int


class _Rates(NamedTuple):
    received_per_s: float | None
    delivered_per_s: float | None


_NO_RATES: Final = _Rates(None, None)


class AddressDirectory:
    """Addresses of one gateway, in pages."""

    def __init__(self, sources: AddressSources, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic seconds."""
        self.sources: Final = sources
        self._clock = clock
        self._rows: dict[str, AddressRow] = {}
        self._before: dict[str, _Counts] = {}
        self._elapsed_s = 0.0
        """Time between the counts before and the rows; 0 without counts."""
        self._read_at = self._used_at = float("-inf")
        self._left_out = 0
        self._levels: dict[str, list[AddressLevel]] = {}
        """Levels of the tree by the address above them, least recently made first."""
        self._orders: dict[tuple[str, str], list[RankedRow]] = {}
        """Orders by sort key and text, least recently made first."""
        self._busy = asyncio.Lock()
        self._ranks: Final[Mapping[str, Callable[[AddressRow], str | float]]] = {
            "rate": self._rate_rank,
            "address": lambda row: row.address,
            "delivered": lambda row: -(self._rates(row).delivered_per_s or 0.0),
            "waiting": lambda row: -row.waiting,
            "consumers": lambda row: -row.consumers,
        }

    @property
    def sorts(self) -> tuple[str, ...]:
        """Sort keys, the default first: names are ascending, figures descending."""
        return tuple(self._ranks)

    def tick(self) -> None:
        """Drop an unused list. Call it every second."""
        if self._rows and not self._busy.locked() and self._clock() - self._used_at > UNUSED_S:
            self._rows, self._before, self._read_at = {}, {}, float("-inf")
            self._orders.clear()
            self._levels.clear()

    async def tree(self, under: str, *, after: str | None = None, limit: int) -> AddressTreePage:
        """Return a page of one level of the tree: the names below an address."""
        async with self._busy:
            self._used_at = self._clock()
            if self._used_at - self._read_at >= FRESH_S:
                await self._refresh()
            levels = self._levels.get(under)
            if levels is None:
                levels = self._levels[under] = await level_of(
                    self._rows.values(), under, lambda row: self._rates(row).received_per_s
                )
                while len(self._levels) > LEVELS_KEPT_MAX:
                    del self._levels[next(iter(self._levels))]
            shown, following = page_of_level(levels, after, limit)
            total, left_out = len(levels), self._left_out
        return AddressTreePage(under=under, levels=shown, next=following, total=total, left_out=left_out)

    async def page(self, *, sort: str, text: str = "", after: str | None = None, limit: int) -> AddressPage:
        """Return a page of addresses with this text in address or subscription.

        Raises InvalidPosition, KeyError for an unknown sort key.
        """
        async with self._busy:
            self._used_at = self._clock()
            if self._used_at - self._read_at >= FRESH_S:
                await self._refresh()
            rows = await self._order(sort, text)
            page = page_of(rows, after, limit)
            shown, left_out = [self._rows[row.id] for row in page.rows], self._left_out
            rates = [self._rates(row) for row in shown]
        oldest = await asyncio.gather(*(self.sources.oldest_at(row) for row in shown))
        documents = [_document(*each) for each in zip(shown, rates, oldest, strict=True)]
        return AddressPage(addresses=documents, next=page.next, total=len(rows), left_out=left_out)

    async def documents(self, address: str) -> list[AddressDocument]:
        """Return the rows of one address, with the rates of the last lists."""
        found = list(islice(self.sources.of_address(address), SLICE))
        oldest = await asyncio.gather(*(self.sources.oldest_at(row) for row in found))
        return [_document(row, self._last_rates(row), at) for row, at in zip(found, oldest, strict=True)]

    # --- inside -------------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Read all rows; the counts of the ones before become the base of rates."""
        counts = {row.id: _Counts(row.received or 0, row.delivered or 0) for row in self._rows.values()}
        found, walk = dict[str, AddressRow](), self.sources.walk()
        while some := list(islice(walk, SLICE)):
            for row in some:
                if row is not None and len(found) < LISTED_MAX:
                    found[row.id] = row
            if len(found) >= LISTED_MAX:
                break
            await asyncio.sleep(0)
        now = self._clock()
        elapsed_s = now - self._read_at
        self._before, self._elapsed_s = (counts, elapsed_s) if counts and elapsed_s <= RATED_S else ({}, 0.0)
        self._rows, self._read_at = found, now
        self._left_out = max(0, self.sources.count() - len(found))
        self._orders.clear()
        self._levels.clear()

    async def _order(self, sort: str, text: str) -> list[RankedRow]:
        order = self._orders.get((sort, text))
        if order is None:
            rank, slices, rows = self._ranks[sort], WorkSlices(), list[RankedRow]()
            for number, row in enumerate(self._rows.values()):
                if not text or text in row.address or text in row.subscription:
                    rows.append(RankedRow(rank(row), row.id))
                if not number % SLICE_ROWS:
                    await slices.pause()
            order = self._orders[sort, text] = await sort_rows(rows, slices)
            while len(self._orders) > ORDERS_KEPT_MAX:
                del self._orders[next(iter(self._orders))]
        return order

    def _rate_rank(self, row: AddressRow) -> float:
        """Rank by rate; by the count while there is no rate."""
        rate = self._rates(row).received_per_s
        return -float(row.received or 0) if rate is None and not self._before else -(rate or 0.0)

    def _rates(self, row: AddressRow) -> _Rates:
        before = self._before.get(row.id)
        if before is None or self._elapsed_s <= 0.0:
            return _NO_RATES
        return _Rates(
            _per_second(row.received, before.received, self._elapsed_s),
            _per_second(row.delivered, before.delivered, self._elapsed_s),
        )

    def _last_rates(self, row: AddressRow) -> _Rates:
        listed = self._rows.get(row.id)
        return _NO_RATES if listed is None else self._rates(listed)


def _per_second(count: int | None, before: int, elapsed_s: float) -> float | None:
    """Return a rate; None for a count that is not known. A count that decreased belongs to a new object."""
    return None if count is None else round(max(0, count - before) / elapsed_s, 2)


def _document(row: AddressRow, rates: _Rates, oldest_at: float | None) -> AddressDocument:
    return AddressDocument(
        id=row.id,
        address=row.address,
        type=row.type,
        subscription=row.subscription,
        received=row.received,
        delivered=row.delivered,
        received_per_s=rates.received_per_s,
        delivered_per_s=rates.delivered_per_s,
        waiting=row.waiting,
        oldest_at=oldest_at,
        consumers=row.consumers,
    )
