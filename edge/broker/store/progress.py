"""How far a consumer group has come in a log: a position, and the ranges acknowledged above it."""

from __future__ import annotations

import struct
from itertools import pairwise

from edge.broker.model.ranges import Ranges


class Progress(Ranges):
    """Acknowledged positions as ranges, the first of which reaches from before the log's start to `position`.

    In-order acknowledgements extend that first range: O(1), nothing to merge. Others cost O(log n) of the ranges open.
    """

    __slots__ = ()

    def __init__(self, position: int, above: bytes = b"") -> None:
        """`above` is what `pack` gave; raises ValueError when it is not."""
        super().__init__()
        self.add(-1, position - 1)
        for first, last in unpack(position, above):
            self.add(first, last)

    @property
    def position(self) -> int:
        """The first position not acknowledged."""
        return self._lasts[0] + 1

    @property
    def above(self) -> list[tuple[int, int]]:
        """Ranges (first, last) above `position`, ascending and disjoint."""
        if len(self._firsts) == 1:
            return []
        return list(zip(self._firsts[1:], self._lasts[1:], strict=True))

    def copy(self) -> Progress:
        """The same, on its own from now on."""
        twin = Progress(0)
        twin._firsts, twin._lasts = self._firsts[:], self._lasts[:]
        return twin

    def backlog(self, end: int) -> int:
        """How many positions below `end` are not acknowledged."""
        return max(0, end + 1 - self.count)  # position -1 anchors the first range

    def pack(self) -> bytes:
        """The ranges above, for `unpack`: offsets from `position`, 4 bytes each while they fit, else 8."""
        if len(self) == 1:
            return b""
        position = self.position
        offsets = [value - position for pair in self.above for value in pair]
        code = "I" if offsets[-1] <= 0xFFFF_FFFF else "Q"
        return code.encode() + struct.pack(f"<{len(offsets)}{code}", *offsets)


def unpack(position: int, above: bytes) -> list[tuple[int, int]]:
    """The ranges `Progress.pack` packed. Raises ValueError when they are not ascending and above `position`."""
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
