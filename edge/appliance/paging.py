"""Sorted tables of many rows, made in slices of time and read in pages that continue behind a row (keyset paging)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

SLICE_S: Final = 0.001
"""Seconds of work between two turns of the loop."""

SLICE_ROWS: Final = 32
"""Rows between two looks at the clock."""

RUN_ROWS: Final = 512
"""Rows that are sorted at a time, some 0.2 ms; sorted runs are merged in linear time."""


class RankedRow(NamedTuple):
    """Place of a row in a sort order."""

    rank: str | float
    """Value by which the order is sorted; smaller ones come first."""
    id: str


class RowPage(NamedTuple):
    """Rows of one page."""

    rows: Sequence[RankedRow]
    next: str | None
    """Position behind the last row; None: it is the last page."""


class InvalidPosition(Exception):
    """The position is not the `next` of an earlier page of this sort order."""


class WorkSlices:
    """Yields to the event loop after each slice of work."""

    def __init__(self) -> None:
        self.worked_s = 0.0
        self._since = time.perf_counter()

    async def pause(self) -> None:
        """Let other work run if the slice is over."""
        worked_s = time.perf_counter() - self._since
        if worked_s >= SLICE_S:
            self.worked_s += worked_s
            await asyncio.sleep(0)
            self._since = time.perf_counter()

    def end(self) -> float:
        """Return the seconds of work in all slices."""
        return self.worked_s + time.perf_counter() - self._since


async def sort_rows(rows: list[RankedRow], slices: WorkSlices) -> list[RankedRow]:
    """Return the rows in order."""
    runs = [rows[start : start + RUN_ROWS] for start in range(0, len(rows), RUN_ROWS)] or [[]]
    for run in runs:
        run.sort()
        await slices.pause()
    while len(runs) > 1:
        merged = runs[len(runs) & ~1 :]
        for one, other in zip(runs[::2], runs[1::2], strict=False):
            joined = [*one, *other]
            joined.sort()  # two sorted runs: linear
            merged.append(joined)
            await slices.pause()
        runs = merged
    return runs[0]


def page_of(rows: Sequence[RankedRow], after: str | None, limit: int) -> RowPage:
    """Return the page behind a position; None: the first one. Raises InvalidPosition."""
    start = 0
    if after is not None:
        textual = isinstance(rows[0].rank, str) if rows else None
        start = bisect_right(rows, _position_of(after, textual=textual))
    shown = rows[start : start + limit]
    return RowPage(shown, _position_behind(shown[-1]) if len(rows) > start + limit else None)


def _position_behind(row: RankedRow) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(row)).decode().rstrip("=")


def _position_of(after: str, *, textual: bool | None) -> RankedRow:
    """Return a position from an earlier page. `textual`: its rank is a text; None: unknown. Raises InvalidPosition."""
    try:
        data = base64.urlsafe_b64decode(after + "=" * (-len(after) % 4))
        rank, identity = msgspec.json.decode(data, type=tuple[str | float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise InvalidPosition(after[:100]) from error
    if textual is not None and isinstance(rank, str) is not textual:
        raise InvalidPosition(after[:100])
    return RankedRow(rank, identity)
