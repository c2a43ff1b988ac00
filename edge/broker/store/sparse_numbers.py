"""Numbers by number, where the keys ascend and most of the older ones are gone."""

from __future__ import annotations

from array import array
from typing import Final

_CHUNK_BITS: Final = 10


class SparseNumbers:
    """Of cursors: their numbers ascend and are not used again, so pieces of the table in which none is left are given
    back. The values are from 1 on."""

    __slots__ = ("_chunks", "_counts")

    def __init__(self) -> None:
        self._chunks: dict[int, array[int]] = {}
        self._counts: dict[int, int] = {}

    def get(self, key: int) -> int | None:
        chunk = self._chunks.get(key >> _CHUNK_BITS)
        return None if chunk is None else chunk[key & (1 << _CHUNK_BITS) - 1] or None

    def put(self, key: int, value: int) -> None:
        """There is none of this key."""
        number = key >> _CHUNK_BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = array("i", [0]) * (1 << _CHUNK_BITS)
            self._counts[number] = 0
        chunk[key & (1 << _CHUNK_BITS) - 1] = value
        self._counts[number] += 1

    def remove(self, key: int) -> None:
        """There is one of this key."""
        number = key >> _CHUNK_BITS
        self._counts[number] -= 1
        if self._counts[number]:
            self._chunks[number][key & (1 << _CHUNK_BITS) - 1] = 0
        else:
            del self._chunks[number], self._counts[number]
