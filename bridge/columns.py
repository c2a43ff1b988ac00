"""Building blocks of the batch format: integer columns in planes, dictionaries, and compressed sections.

All reading is bounds-checked and raises `BatchError` and nothing else. All integers are little-endian.
"""

from __future__ import annotations

import enum
import sys
import threading
from array import array
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import ClassVar, Final

import zstandard

FAST: Final = 3
"""zstd on JSON readings: levels 1 to 3 differ by 6 % in size and 10 % in time."""
SMALL: Final = 9
"""20 % smaller than level 3, for one more microsecond a message: used for the backlog. Level 12 takes twice as long."""
SMALL_MATCH_MIN: Final = 6
"""Shortest match in bytes at `SMALL`. Readings get 1 % smaller than with the level's default of 4, in the same time: a
reference to one or two equal digits costs more than the digits."""


class Codec(enum.IntEnum):
    """Compression of the table and the columns."""

    NONE = 0
    ZSTD = 1


class BatchError(Exception):
    """The bytes are not a batch: truncated, altered, contradictory, or beyond the limits of the format."""

    condition: ClassVar[str] = "amqp:decode-error"


def dictionary(entries: list[bytes]) -> bytes:
    """Encode the entries that columns refer to: their number, the length of each, all of them joined."""
    return b"".join((len(entries).to_bytes(4, "little"), planes(array("I", map(len, entries))), *entries))


def planes(column: array[int]) -> bytes:
    """Return the bytes of a column, lowest plane first."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    data = column.tobytes()
    return b"".join([data[plane :: column.itemsize] for plane in range(column.itemsize)])


def pack(section: bytes, level: int = FAST) -> bytes:
    """Compress a section with zstd at `FAST` or `SMALL`; the frame declares the original size."""
    return (_zstd.small if level == SMALL else _zstd.fast).compress(section)


def unpack(codec: int, packed: bytes, size: int) -> bytes:
    """Decompress a section; nothing is allocated for a size other than the declared one."""
    if codec == Codec.NONE:
        if len(packed) != size:
            raise BatchError("a section is not of its declared size")
        return packed
    try:
        if zstandard.frame_content_size(packed) != size:
            raise BatchError("a section is not of its declared size")
        return _zstd.decompressor.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BatchError(f"zstd: {error}") from None


class ColumnReader:
    """Reads a section from front to back; a short read raises `BatchError`."""

    __slots__ = ("_data", "_offset")

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def take(self, length: int) -> bytes:
        """Read the next `length` bytes."""
        start = self._offset
        self._offset = start + length
        if self._offset > len(self._data):
            raise BatchError("a section ends early")
        return self._data[start : self._offset]

    def count(self) -> int:
        """Read a number of entries: u32."""
        return int.from_bytes(self.take(4), "little")

    def text(self, length: int) -> str:
        """Read the next `length` bytes as UTF-8."""
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise BatchError(f"not UTF-8: {error}") from None

    def column(self, typecode: str, entries: int) -> array[int]:
        """Read a column of integers that `planes` wrote; `typecode` as in the module `array`."""
        column: array[int] = array(typecode)
        width = column.itemsize
        data = self.take(entries * width)
        joined = bytearray(len(data))
        for plane in range(width):
            joined[plane::width] = data[plane * entries : (plane + 1) * entries]
        column.frombytes(joined)
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def slices(self, lengths: Iterable[int]) -> list[bytes]:
        """Read consecutive byte strings of these lengths."""
        ends = list(accumulate(lengths, initial=self._offset))
        if ends[-1] > len(self._data):
            raise BatchError("a section ends early")
        self._offset = ends[-1]
        data = self._data
        return [data[start:end] for start, end in pairwise(ends)]

    def texts(self, lengths: Iterable[int]) -> list[str]:
        """Read consecutive UTF-8 strings of these lengths in bytes."""
        try:
            return [entry.decode() for entry in self.slices(lengths)]
        except UnicodeDecodeError as error:
            raise BatchError(f"not UTF-8: {error}") from None

    def finish(self) -> None:
        """Raise `BatchError` when bytes are left."""
        if self._offset != len(self._data):
            raise BatchError(f"{len(self._data) - self._offset} bytes too many")


class _ZstdContexts(threading.local):
    """Two compressors and one decompressor per thread: creating them costs more than a small batch does."""

    def __init__(self) -> None:
        self.fast = zstandard.ZstdCompressor(level=FAST, write_content_size=True)
        small = zstandard.ZstdCompressionParameters.from_level(
            SMALL, min_match=SMALL_MATCH_MIN, write_content_size=True
        )
        self.small = zstandard.ZstdCompressor(compression_params=small)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd: Final = _ZstdContexts()
