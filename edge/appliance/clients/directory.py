"""Sorted and filtered pages of a gateway's clients, of which there may be 20 000.

A sort order is computed in time slices (`edge.appliance.paging`), and kept for `SHARE` times as long as it took: a
client that reads pages as fast as possible costs 2 % of a core. A page is found by bisection.
With 10 000 clients of a real gateway an order takes 10 ms by name, 20 ms by messages or queue, and a page of 50 takes
2.5 ms. By queue each client that is away and has messages adds 20 us.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from edge.appliance.clients.documents import ClientPage
from edge.appliance.clients.sources import ClientSources
from edge.appliance.paging import SLICE_ROWS, RankedRow, WorkSlices, page_of, sort_rows

FRESH_S: Final = 0.25
"""Shortest lifetime of a sort order: a person sees no difference."""

SHARE: Final = 50
"""Lifetime of a sort order, in multiples of the time that it took."""

ORDERS_KEPT_MAX: Final = 2
"""Sort orders kept at a time, some 2 MB each with 10 000 clients."""

VIEWS_KEPT_MAX: Final = 4
"""Filtered copies kept of each sort order."""

UNUSED_S: Final = 10.0
"""Seconds after which an unused sort order is dropped."""

QUEUED: Final = "queued"
"""Sort key of the stored messages, which are counted for all clients at once."""

STATES: Final = ("all", "connected", "silent", "absent")
"""Values of `state`: all clients, those with a connection, silent ones, and those without a connection."""


class _SortOrder:
    """All clients in one order."""

    def __init__(self, rows: list[RankedRow], until: float) -> None:
        self.rows = rows
        self.until = until
        """End of its life, by the clock of the directory."""
        self.views: dict[tuple[str, str], list[RankedRow]] = {}
        """Rows of a state that contain a text, by state and text."""


class ClientDirectory:
    """Clients of one gateway, in pages."""

    def __init__(self, sources: ClientSources, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.sources: Final = sources
        self._monotonic_s = monotonic_s
        self._orders: dict[str, _SortOrder] = {}
        """By sort key, least recently used first."""
        self._used_at = 0.0
        self._building = asyncio.Lock()
        self._ranks: Final[Mapping[str, Callable[[str], str | float]]] = {
            "name": self._name,
            "user": self._user,
            "in": lambda identity: -sources.received(identity),
            "out": lambda identity: -sources.sent(identity),
            "last": lambda identity: -sources.last_at(identity),
        }

    @property
    def sorts(self) -> Iterable[str]:
        """Sort keys: names are ascending, figures and times descending."""
        return (*self._ranks, QUEUED)

    def tick(self) -> None:
        """Look at clients for their message times, and drop unused sort orders. Call it every second."""
        now = self._monotonic_s()
        self.sources.activity.look(now)
        if self._orders and now - self._used_at > UNUSED_S:
            self._orders.clear()

    async def page(
        self, *, sort: str = "name", state: str = "all", text: str = "", after: str | None = None, limit: int
    ) -> ClientPage:
        """Return a page of clients of this state with this text in name, user or remote address.

        Raises InvalidPosition, KeyError for an unknown sort key.
        """
        rows = await self._view(sort, state, text)
        page = page_of(rows, after, limit)
        documents = [self.sources.document(each.id) for each in page.rows]
        return ClientPage(
            clients=[each for each in documents if each is not None],
            next=page.next,
            total=len(rows),
        )

    # --- inside -------------------------------------------------------------------------------------------------

    def _name(self, identity: str) -> str:
        return self.sources.texts(identity)[0] if not identity.startswith("mqtt/") else identity[5:]

    def _user(self, identity: str) -> str:
        return self.sources.user(identity) or "\U0010ffff"  # last

    async def _view(self, sort: str, state: str, text: str) -> list[RankedRow]:
        async with self._building:
            self._used_at = self._monotonic_s()
            order = self._orders.pop(sort, None)
            if order is None or order.until < self._used_at:
                order = await self._sorted(sort)
            self._orders[sort] = order
            while len(self._orders) > ORDERS_KEPT_MAX:
                del self._orders[next(iter(self._orders))]
            if state == "all" and not text:
                return order.rows
            view = order.views.get((state, text))
            if view is None:
                view = order.views[state, text] = await self._filtered(order.rows, state, text)
                while len(order.views) > VIEWS_KEPT_MAX:
                    del order.views[next(iter(order.views))]
            return view

    async def _sorted(self, sort: str) -> _SortOrder:
        slices, rows = WorkSlices(), list[RankedRow]()
        rank = await self._queued_rank(slices) if sort == QUEUED else self._ranks[sort]
        for number, identity in enumerate(self.sources.ids()):
            rows.append(RankedRow(rank(identity), identity))
            if not number % SLICE_ROWS:
                await slices.pause()
        ordered = await sort_rows(rows, slices)
        return _SortOrder(ordered, self._monotonic_s() + max(FRESH_S, SHARE * slices.end()))

    async def _queued_rank(self, slices: WorkSlices) -> Callable[[str], float]:
        """Count the stored messages of all clients; return the rank of one."""
        counts = Counter[str]()
        for number, (identity, count) in enumerate(self.sources.queues()):
            counts[identity] += count
            if not number % SLICE_ROWS:
                await slices.pause()
        return lambda identity: -counts[identity]

    async def _filtered(self, rows: list[RankedRow], state: str, text: str) -> list[RankedRow]:
        slices, found, sources = WorkSlices(), list[RankedRow](), self.sources
        for number, row in enumerate(rows):
            if _is_in(sources, row.id, state) and (not text or any(text in each for each in sources.texts(row.id))):
                found.append(row)
            if not number % SLICE_ROWS:
                await slices.pause()
        return found


def _is_in(sources: ClientSources, identity: str, state: str) -> bool:
    if state == "silent":
        return sources.is_silent(identity)
    return state == "all" or sources.is_connected(identity) is (state == "connected")
