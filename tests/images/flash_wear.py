"""Wear of a card by recorded writes: what reaches it, and what a simple card would program.

The model is a card with a map of erase blocks, as cheap ones have (BAST, a log block for each open block). A write goes
to the log of its block in whole flash pages. A card has logs for a few blocks only. The log that was used longest ago
is closed for another block, and so is a full one: what the log does not hold is copied into it when it was written in
order from the block's beginning, otherwise the whole block is copied into a new one.

Real cards differ, have caches, and are secret. A card that maps pages, as eMMC, programs little more than it is given.
The two are the bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.images.write_log import Write

ERASE_BLOCK: Final = 4 << 20
"""Bytes: the alignment of the partitions."""
FLASH_PAGE: Final = 16 << 10
"""Bytes that a card programs at once."""
STREAMS: Final = 6
"""Places at which a write may continue an earlier one: f2fs has six logs."""


class Written(NamedTuple):
    """Writes that reached a disk."""

    writes: int
    flushes: int
    size: int
    """Bytes."""
    in_order: int
    """Bytes of writes that continue one of the last `STREAMS` ones."""


def count_writes(requests: Iterable[tuple[Write, bool]]) -> Written:
    """Count writes and flushes."""
    ends: OrderedDict[int, None] = OrderedDict()
    writes = flushes = size = in_order = 0
    for write, is_flush in requests:
        flushes += is_flush
        if not write.size:
            continue
        writes, size = writes + 1, size + write.size
        if write.place in ends:
            in_order += write.size
            del ends[write.place]
        ends[write.place + write.size] = None
        if len(ends) > STREAMS:
            ends.popitem(last=False)
    return Written(writes, flushes, size, in_order)


class BlockLog:
    """Log of one erase block."""

    def __init__(self) -> None:
        self.programmed = 0
        """Bytes."""
        self.end: int | None = 0
        """End of what was written in order from the beginning of the block; None after a write elsewhere."""


class Card:
    """Card with logs for this number of open erase blocks."""

    def __init__(self, open_blocks: int) -> None:
        self.programmed = 0
        """Bytes, with copies."""
        self._open_blocks = open_blocks
        self._logs: OrderedDict[int, BlockLog] = OrderedDict()

    def write(self, write: Write) -> None:
        place, end = write.place, write.place + write.size
        while place < end:
            block, offset = divmod(place, ERASE_BLOCK)
            size = min(end - place, ERASE_BLOCK - offset)
            self._append(block, offset, size)
            place += size

    def close(self) -> None:
        """Close all logs, as before a long pause."""
        while self._logs:
            self._close(next(iter(self._logs)))

    def _append(self, block: int, offset: int, size: int) -> None:
        cost = -(-size // FLASH_PAGE) * FLASH_PAGE
        log = self._logs.get(block)
        if log is not None and log.programmed + cost > ERASE_BLOCK:
            self._close(block)
            log = None
        if log is None:
            if len(self._logs) == self._open_blocks:
                self._close(next(iter(self._logs)))
            log = self._logs[block] = BlockLog()
        self._logs.move_to_end(block)
        log.end = offset + cost if log.end == offset else None
        log.programmed += cost
        self.programmed += cost

    def _close(self, block: int) -> None:
        log = self._logs.pop(block)
        self.programmed += ERASE_BLOCK - log.programmed if log.end is not None else ERASE_BLOCK
