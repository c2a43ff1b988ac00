"""Queues and durable subscriptions as pages of a table: ``GET /api/v1/addresses``.

There may be very many, and most of their state is rows. So the list is read in slices, between which other connections
are served, and all pages share it for some seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.appliance.console.status import AddressStatus

FRESH_S: Final = 4.0
"""Age up to which a list is shown again; a page asks every 5 s."""
LISTED_MAX: Final = 20_000
"""Names in a list: about 6 MB while a page shows it. `left_out` says how many more there are."""
SLICE: Final = 100
"""Names read at a time, about half a millisecond."""
LIMIT_MAX: Final = 500
LIMIT: Final = 50
SORTS: Final = ("address", "stored", "received", "subscribers")
_NAMED: Final = itemgetter("address")


class AddressListing:
    """List of the addresses of one gateway."""

    def __init__(
        self,
        walk: Callable[[], Iterator[AddressStatus]],
        count: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`walk` iterates over all names, and bears changes in between; `count` returns their number."""
        self._walk = walk
        self._count = count
        self._clock = clock
        self._rows: list[AddressStatus] = []
        self._left_out = 0
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def respond(self, request: Request) -> Response:
        """Answer with one page: ``?q=PART&sort=[-]KEY&after=NEXT&limit=N``; 400 for a wrong parameter."""
        query = request.query_params
        sort = query.get("sort") or "-stored"
        key, down = sort.removeprefix("-"), sort.startswith("-")
        limit, after = query.get("limit", str(LIMIT)), query.get("after", "0")
        if key not in SORTS:
            return _bad(f"sort must be one of {', '.join(SORTS)}, with - before it for the largest first")
        if not _is_number(limit, LIMIT_MAX) or limit == "0":
            return _bad(f"limit must be a number from 1 to {LIMIT_MAX}")
        if not _is_number(after or "0", LISTED_MAX):
            return _bad("after must be the `next` of the page before")
        await self._refresh()
        return JSONResponse(self._page(query.get("q", ""), key, down, int(after or "0"), int(limit)))

    def _page(self, part: str, key: str, down: bool, start: int, limit: int) -> dict[str, Any]:
        rows = [row for row in self._rows if part in row["address"] or part in row.get("subscription", "")]
        rows.sort(key=_NAMED)
        if key != "address":
            rows.sort(key=lambda row: row.get(key, 0), reverse=down)  # type: ignore[arg-type, return-value]  # numbers
        elif down:
            rows.reverse()
        page = rows[start : start + limit]
        following = str(start + limit) if start + limit < len(rows) else None
        return {"addresses": page, "next": following, "total": len(rows), "left_out": self._left_out}

    async def _refresh(self) -> None:
        """Read the list unless it is fresh."""
        async with self._reading:
            if self._clock() - self._read_at < FRESH_S:
                return
            names, rows = self._walk(), list[AddressStatus]()
            while some := self._take(names, LISTED_MAX - len(rows)):
                rows += some
                await asyncio.sleep(0)
            self._rows, self._read_at = rows, self._clock()
            self._left_out = max(0, self._count() - len(rows))

    @staticmethod
    def _take(names: Iterator[AddressStatus], most: int) -> Sequence[AddressStatus]:
        return list(islice(names, min(SLICE, most)))


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most


def _bad(error: str) -> Response:
    return JSONResponse({"error": error}, status_code=400)
