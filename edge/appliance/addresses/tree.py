"""Levels of the tree of addresses, one at a time: names between slashes, with sums of everything below."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from edge.appliance.addresses.documents import AddressLevel
from edge.appliance.addresses.sources import AddressRow
from edge.appliance.paging import SLICE_ROWS, WorkSlices


async def level_of(
    rows: Iterable[AddressRow], under: str, received_per_s: Callable[[AddressRow], float | None]
) -> list[AddressLevel]:
    """Return the names below an address, sorted. `under`: empty for the first level."""
    prefix, slices, found = f"{under}/" if under else "", WorkSlices(), dict[str, AddressLevel]()
    for number, row in enumerate(rows):
        if row.address.startswith(prefix):
            name, slash, _ = row.address[len(prefix) :].partition("/")
            level = found.get(name)
            if level is None:
                level = found[name] = AddressLevel(
                    name=name, path=prefix + name, rows=0, deeper=0, received_per_s=0.0, waiting=0
                )
            level.rows += 1
            level.deeper += bool(slash)
            level.waiting += row.waiting
            level.received_per_s = round(level.received_per_s + (received_per_s(row) or 0.0), 2)
        if not number % SLICE_ROWS:
            await slices.pause()
    return [found[name] for name in sorted(found)]


def page_of_level(
    levels: Sequence[AddressLevel], after: str | None, limit: int
) -> tuple[list[AddressLevel], str | None]:
    """Return the names behind `after`, and the position behind the last one; None: it is the last page."""
    start = 0 if after is None else bisect_right(levels, after, key=lambda level: level.name)
    shown = list(levels[start : start + limit])
    return shown, shown[-1].name if len(levels) > start + limit else None
