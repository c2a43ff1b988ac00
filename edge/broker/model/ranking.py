"""Heap that finds the item with the largest number while numbers change.

The cost of a query depends on the items that changed since the last one, not on all items.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SPARE_ENTRIES: Final = 16
"""The heap is rebuilt when it has more outdated entries than valid ones, plus this number."""


class Ranking(Generic[T]):
    """Items ranked by their numbers. A heap entry is valid until its item gets a newer one."""

    __slots__ = ("_changed", "_entries", "_made", "_number", "_serials")

    def __init__(self, number: Callable[[T], int], items: Iterable[T] = ()) -> None:
        """`number` returns the current number of an item; `items` are added at once."""
        self._number = number
        self._changed: dict[T, None] = dict.fromkeys(items)
        """Items that may have an outdated entry."""
        self._serials: dict[T, int] = {}
        """Serial of the valid entry of each item."""
        self._entries: list[tuple[int, int, T]] = []
        """Heap of (negative number, serial, item)."""
        self._made = 0

    def changed(self, item: T) -> None:
        """Note that the number of an item may have changed, or that it is new."""
        self._changed[item] = None

    def discard(self, item: T) -> None:
        """Remove an item; idempotent."""
        self._changed.pop(item, None)
        if self._serials.pop(item, None) is not None:
            self._tidy()

    def largest(self) -> T | None:
        """Return an item with the largest number; None without items."""
        for item in self._changed:
            self._made += 1
            self._serials[item] = self._made
            heapq.heappush(self._entries, (-self._number(item), self._made, item))
        self._changed.clear()
        self._tidy()
        entries = self._entries
        while entries:
            _, serial, item = entries[0]
            if self._serials.get(item) == serial:
                return item
            heapq.heappop(entries)
        return None

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._serials) + SPARE_ENTRIES:
            self._entries = [entry for entry in self._entries if self._serials.get(entry[2]) == entry[1]]
            heapq.heapify(self._entries)
