"""Many topic filters, found by the names they match, at 4 bytes each: numbers in the order of their filters.

`FilterTree` finds them faster and takes some 200 bytes for a filter that has a level of its own. This is for those
somebody has to find now and then, such as the filters of sessions that are away.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from edge.broker.model.topics import EVERY_NAME

_PART: Final = 1024
"""Numbers that are sorted together: 150 KB of text and keys."""
_BEHIND_SLASH: Final = chr(ord("/") + 1)


class SortedFilters:
    """Numbers, each of which has a filter that does not change while it is here. Several may have the same filter."""

    def __init__(self, filter_of: Callable[[int], str]) -> None:
        self._filter_of = filter_of
        self._numbers = array("i")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        """It is not here yet. Moves 4 bytes of each that comes behind it."""
        self._numbers.insert(bisect_left(self._numbers, self._key(number), key=self._key), number)

    def add_all(self, numbers: Iterable[int]) -> None:
        """As `add` of each, sorted once: in parts, as there may be very many, so that few filters are text at once."""
        parts, wanted = [self._numbers], iter(numbers)
        while part := sorted(islice(wanted, _PART), key=self._key):
            parts.append(array("i", part))
        self._numbers = array("i", heapq.merge(*parts, key=self._key))

    def remove(self, number: int) -> None:
        """It is here, and still has its filter."""
        del self._numbers[bisect_left(self._numbers, self._key(number), key=self._key)]

    def match(self, name: str) -> list[int]:
        """Every number whose filter matches the topic name."""
        if not self._numbers:
            return []
        levels, hidden = name.split("/"), name.startswith("$")
        found = self._equal(EVERY_NAME["#"], 0, len(self._numbers))
        stack = [("", 0, 0, len(self._numbers))]  # filters whose first levels match, and which of the name follows
        while stack:
            prefix, at, low, high = stack.pop()
            wildcards = not (hidden and at == 0)
            if wildcards:
                found += self._equal(f"{prefix}#", low, high)  # also the parent level [MQTT-4.7.1-2]
            if at == len(levels):
                continue
            wanted = ["+"] if wildcards else []
            if at == 0:
                wanted.append(EVERY_NAME["+"])
            if levels[at] not in ("+", "#"):
                wanted.append(levels[at])
            for level in dict.fromkeys(wanted):
                if at + 1 == len(levels):
                    found += self._equal(prefix + level, low, high)
                below, first, end = self._below(f"{prefix}{level}/", low, high)
                if first < end:
                    stack.append((below, at + 1, first, end))
        return found

    def deciding_levels(self, name: str) -> int:
        """See `FilterTree.deciding_levels`."""
        levels = name.split("/")
        if name.startswith("$"):
            return len(levels)
        ranges, wildcards = [("", 0, len(self._numbers))], ["+", EVERY_NAME["+"]]
        for count, level in enumerate(levels[:-1], 1):
            below = (
                self._below(f"{prefix}{each}/", low, high)
                for prefix, low, high in ranges
                for each in (level, *wildcards)
            )
            # without those in which there is nothing: else they were twice as many with each level
            ranges, wildcards = [each for each in below if each[1] < each[2]], ["+"]
            if all(len(self._equal(f"{prefix}#", low, high)) == high - low for prefix, low, high in ranges):
                return count
        return len(levels)

    def _below(self, prefix: str, low: int, high: int) -> tuple[str, int, int]:
        """Where those are, between two places, whose filters begin with this, which ends with a slash."""
        first = bisect_left(self._numbers, prefix, low, high, key=self._filter_of)
        end = bisect_left(self._numbers, prefix[:-1] + _BEHIND_SLASH, first, high, key=self._filter_of)
        return prefix, first, end

    def _equal(self, pattern: str, low: int, high: int) -> list[int]:
        """Those between two places that have just this filter."""
        first = bisect_left(self._numbers, pattern, low, high, key=self._filter_of)
        found = []
        while first < high and self._filter_of(self._numbers[first]) == pattern:
            found.append(self._numbers[first])
            first += 1
        return found

    def _key(self, number: int) -> tuple[str, int]:
        return self._filter_of(number), number
