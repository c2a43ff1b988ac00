"""Plan of a download: which bytes of a bundle are copied from the running system, and which are fetched.

The file grows from its beginning, by copied blocks and by fetched ranges in turn. So whatever is in it after a power
cut is a beginning of the bundle, as in a download without copies.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Final

from bridge.block_index import BlockIndex, BundleBlock

GAP_BYTES_MIN: Final = 8 << 10
"""Fewest bytes that are copied between two fetched ranges: a request costs some 500 bytes, and a round trip of up to a
second over a mobile network, in which some kilobytes could be sent."""
WRONG_COPIES_MAX: Final = 3
"""Blocks that came out different, after which nothing more is copied: another zlib would spoil all of them, and a
request for each would cost more than it saves."""


class CopyPlan:
    """Plan for one bundle. Positions are those of the bundle."""

    def __init__(self, size: int, blocks: tuple[BundleBlock, ...] = (), pieces: Mapping[bytes, bytes] | None = None):
        """`blocks`: those to copy, in order. `pieces`: contents of their pieces, by digest."""
        self._size = size
        self._blocks = blocks
        self._offsets = [block.offset for block in blocks]
        self._pieces: Mapping[bytes, bytes] = pieces if pieces is not None else {}
        self._wrong: set[int] = set()

    @classmethod
    def make(cls, index: BlockIndex, pieces: Mapping[bytes, bytes]) -> CopyPlan:
        """Return the plan that copies each block with all pieces in `pieces`, if enough of them are side by side."""
        chosen: list[BundleBlock] = []
        run: list[BundleBlock] = []
        for block in index.blocks:
            if run and run[-1].end != block.offset:
                chosen += _worth_copying(run)
                run = []
            if all(digest in pieces for digest in block.pieces()):
                run.append(block)
        return cls(index.size, (*chosen, *_worth_copying(run)), pieces)

    @property
    def copied_bytes(self) -> int:
        """Bytes that are to be copied."""
        return sum(block.size for block in self._blocks)

    def copy(self, position: int) -> bytes:
        """Return bytes from the running system that follow this position; empty: they have to be fetched."""
        number = bisect.bisect_right(self._offsets, position) - 1
        if number < 0 or not self._is_copied(number) or self._blocks[number].end <= position:
            return b""
        block = self._blocks[number]
        found = block.compose(self._pieces)
        if found is None:
            self._wrong.add(number)
            return b""
        return found[position - block.offset :]

    def fetch_until(self, position: int) -> int:
        """Return the end of the range to fetch from a position: the next block to copy, or the end of the bundle."""
        number = bisect.bisect_right(self._offsets, position)
        while number < len(self._blocks) and not self._is_copied(number):
            number += 1
        return self._blocks[number].offset if number < len(self._blocks) else self._size

    def _is_copied(self, number: int) -> bool:
        return len(self._wrong) < WRONG_COPIES_MAX and number not in self._wrong


def _worth_copying(run: list[BundleBlock]) -> list[BundleBlock]:
    return run if sum(block.size for block in run) >= GAP_BYTES_MIN else []
