"""Progress of a consumer group in a log: a position, and acknowledged ranges above it."""

from __future__ import annotations

import struct
from itertools import pairwise

from edge.broker.model.ranges import Ranges


class CursorProgress:
    """Acknowledged positions: all below `position`, and usually no ranges above it.

    An acknowledgement in order moves `position` in O(1). Others cost O(log n) of the open ranges.
    """

    __slots__ = ("_above", "position")

    def __init__(self, position: int, above: bytes = b"") -> None:
        """`above` comes from `pack`. Raises ValueError if it is invalid."""
        self.position = position
        """First position that is not acknowledged."""
        self._above: Ranges | None = None
        for first, last in unpack(position, above):
            self.add(first, last)

    @property
    def above(self) -> list[tuple[int, int]]:
        """Ranges (first, last) above `position`, ascending and disjoint."""
        return [] if self._above is None else list(self._above)

    @property
    def in_order(self) -> bool:
        """True when nothing above `position` is acknowledged."""
        return self._above is None

    def add(self, first: int, last: int) -> None:
        """Acknowledge ``first..last``."""
        above = self._above
        if first > self.position:
            if above is None:
                above = self._above = Ranges()
            above.add(first, last)
        elif last >= self.position:
            if above is None:
                self.position = last + 1
            else:
                self._reach(above, last + 1)

    def _reach(self, above: Ranges, position: int) -> None:
        """Move `position` up, and merge adjacent ranges."""
        self.position = above.free_from(position)
        above.remove(0, self.position)
        if not above:
            self._above = None

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of ``first..last`` that are acknowledged, ascending."""
        parts = [(first, min(last, self.position - 1))] if first < self.position and first <= last else []
        return parts if self._above is None else parts + self._above.within(first, last)

    def outside(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of ``first..last`` that are not acknowledged, ascending."""
        first = max(first, self.position)
        if self._above is not None:
            return self._above.outside(first, last)
        return [(first, last)] if first <= last else []

    def copy(self) -> CursorProgress:
        """Return an independent copy."""
        twin = CursorProgress(self.position)
        for first, last in self.above:
            twin.add(first, last)
        return twin

    def backlog(self, end: int) -> int:
        """Return the number of positions below `end` that are not acknowledged."""
        above = 0 if self._above is None else self._above.count
        return max(0, end - self.position - above)

    def pack(self) -> bytes:
        """Return the ranges above for `unpack`: offsets from `position`, 4 bytes each if they fit, else 8."""
        if self._above is None:
            return b""
        offsets = [value - self.position for pair in self._above for value in pair]
        code = "I" if offsets[-1] <= 0xFFFF_FFFF else "Q"
        return code.encode() + struct.pack(f"<{len(offsets)}{code}", *offsets)


def unpack(position: int, above: bytes) -> list[tuple[int, int]]:
    """Return the ranges from `CursorProgress.pack`. Raises ValueError unless they ascend above `position`."""
    if not above:
        return []
    code = above[:1].decode("ascii", "replace")
    size = {"I": 4, "Q": 8}.get(code, 0)
    if not size or (len(above) - 1) % (2 * size):
        raise ValueError("acknowledged ranges are damaged")
    offsets = struct.unpack(f"<{(len(above) - 1) // size}{code}", above[1:])
    if offsets[0] == 0 or any(later < sooner for sooner, later in pairwise(offsets)):
        raise ValueError("acknowledged ranges are not ascending")
    return [(position + first, position + last) for first, last in zip(offsets[::2], offsets[1::2], strict=True)]
