"""The largest of some numbers that change, found in time for those that have changed since it was asked last, however
many there are."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SPARE_ENTRIES: Final = 16
"""Entries that do not count any more are dropped when there are more of them than of those that do, and so many."""


class Ranking(Generic[T]):
    """Items by their numbers: a heap in which an entry counts until its item has a later one."""

    __slots__ = ("_changed", "_entries", "_made", "_number", "_serials")

    def __init__(self, number: Callable[[T], int], items: Iterable[T] = ()) -> None:
        """`number` gives the number an item has now; `items` are in it from the beginning."""
        self._number = number
        self._changed: dict[T, None] = dict.fromkeys(items)
        """Those whose entry may not say what their number is now."""
        self._serials: dict[T, int] = {}
        """Which entry of each item counts."""
        self._entries: list[tuple[int, int, T]] = []
        """(the number's negative, serial, item), a heap."""
        self._made = 0

    def changed(self, item: T) -> None:
        """Its number may have changed, or it is new."""
        self._changed[item] = None

    def gone(self, item: T) -> None:
        """It is in the ranking no more; idempotent."""
        self._changed.pop(item, None)
        if self._serials.pop(item, None) is not None:
            self._tidy()

    def largest(self) -> T | None:
        """One of those with the largest number; None where there is none."""
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
