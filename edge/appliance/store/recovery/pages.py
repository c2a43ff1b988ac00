"""Reading of a database's pages without SQLite, when its trees are damaged.

See https://sqlite.org/fileformat2.html sections 1.3, 1.6, 2.1.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bridge.hidden import hides
from edge.broker.store.limits import VALUE_BYTES_MAX

HEAD_BYTES: Final = 100
"""Size of the database header, at the start of page 1."""
INDEX_NODE, TABLE_NODE, INDEX_LEAF, TABLE_LEAF = 0x02, 0x05, 0x0A, 0x0D
_NODES: Final = (INDEX_NODE, TABLE_NODE)
_HEADER: Final = struct.Struct(">BHHHB")
"""Type, first free block, cells, start of their content (0: 65 536), stray bytes."""
_U32: Final = struct.Struct(">I")
_WIDTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Size of a value by its serial type (section 2.1); types from 12 on are blobs and texts."""
_DEPTH_MAX: Final = 20
"""Largest depth of SQLite's trees."""


@hides("local")
class Cell(NamedTuple):
    """Row in a leaf."""

    rowid: int
    """Row number; 0 in a table without one."""
    size: int
    """Size of the record."""
    local: bytes
    """Bytes of the record on the page itself."""
    overflow: int
    """Page with the following bytes; 0: none."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of a table's records."""

    leaf: int
    """Page type of its leaves."""
    columns: Sequence[str]
    """``INTEGER``, ``TEXT``, ``BLOB``, ``REAL``; ``NULL`` for the column that is the row number."""

    def fits(self, cell: Cell) -> bool:
        """Return True when the head of a cell's record fits this layout."""
        head = record_head(cell.local)
        if head is None or len(head[1]) != len(self.columns):
            return False
        start, types = head
        return start + sum(map(value_bytes, types)) == cell.size and all(map(_is, self.columns, types))


class Pages:
    """Database file, read by page; page 1 is the first."""

    def __init__(self, path: Path, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.count = os.fstat(self._descriptor).st_size // page_bytes

    def close(self) -> None:
        """Close the file; call it once."""
        os.close(self._descriptor)

    def page(self, number: int) -> bytes:
        """Return a page; empty when it does not exist. Raises OSError."""
        if not 0 < number <= self.count:
            return b""
        return os.pread(self._descriptor, self.page_bytes, (number - 1) * self.page_bytes)

    def cells(self, page: bytes) -> Iterator[Cell]:
        """Yield the readable cells of a leaf."""
        for offset in self._offsets(page):
            try:
                size, at = varint(page, offset)
                rowid, at = varint(page, at) if page[0] == TABLE_LEAF else (0, at)
                local = self._local_bytes(page[0], size)
                end = at + local
                overflow = 0 if local == size else _U32.unpack_from(page, end)[0]
            except (IndexError, struct.error):
                continue
            if end <= len(page):
                yield Cell(rowid, size, page[at:end], overflow)

    def content(self, cell: Cell) -> bytes | None:
        """Return the whole record of a cell; None when pages of it are missing."""
        parts, left, number = [cell.local], cell.size - len(cell.local), cell.overflow
        room = self.page_bytes - _U32.size
        if cell.size > min(self.count * self.page_bytes, 2 * VALUE_BYTES_MAX):
            return None
        while left > 0:
            page = self.page(number)
            if not page:
                return None
            number = _U32.unpack_from(page)[0]
            parts.append(page[_U32.size : _U32.size + min(left, room)])
            left -= room
        return b"".join(parts)

    def leads_to(self, root: int, shape: Shape) -> bool:
        """Return True when `root` may be the root of a table of this shape: its first or last leaf has such rows."""
        return any(self._descend(root, shape, last) for last in (False, True))

    def _descend(self, number: int, shape: Shape, last: bool) -> bool:
        for _ in range(_DEPTH_MAX):
            page = self.page(number)
            if not page:
                return False
            if page[0] == shape.leaf:
                cells = list(self.cells(page))
                return any(map(shape.fits, cells)) or _HEADER.unpack_from(page)[2] == 0
            if page[0] not in _NODES or page[0] != shape.leaf - 8:
                return False
            offsets = list(self._offsets(page))
            number = _U32.unpack_from(page, 8 if last or not offsets else offsets[0])[0]
        return False

    def _offsets(self, page: bytes) -> Iterator[int]:
        """Yield the offsets of the cells of a page other than the first."""
        kind, _, count, _, _ = _HEADER.unpack_from(page)
        start = _HEADER.size + (_U32.size if kind in _NODES else 0)
        if start + 2 * count > len(page):
            return
        for (offset,) in struct.iter_unpack(">H", page[start : start + 2 * count]):
            if start + 2 * count <= offset <= len(page) - _U32.size:
                yield offset

    def _local_bytes(self, kind: int, size: int) -> int:
        """Return how many bytes of a record are on the page itself (section 1.6)."""
        usable = self.page_bytes
        most = usable - 35 if kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        fitting = least + (size - least) % (usable - 4)
        return fitting if fitting <= most else least


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return (value, offset behind it) of a signed variable-length integer of SQLite. Raises IndexError."""
    value = 0
    for index in range(9):
        byte = data[offset + index]
        if index == 8:
            value = value << 8 | byte
            break
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value - (1 << 64) if value >> 63 else value, offset + index + 1


def record_head(data: bytes) -> tuple[int, list[int]] | None:
    """Return (offset of the values, their serial types); None when it is not a record."""
    try:
        end, offset = varint(data, 0)
        types = []
        while offset < end:
            kind, offset = varint(data, offset)
            types.append(kind)
    except IndexError:
        return None
    return (end, types) if offset == end and all(kind >= 0 and kind not in (10, 11) for kind in types) else None


def value_bytes(kind: int) -> int:
    """Return the size of a value of a serial type."""
    return _WIDTHS[kind] if kind < len(_WIDTHS) else (kind - 12) // 2


def values(data: bytes) -> list[int | bytes | None]:
    """Return the values of a whole record: integers, None, and all others as bytes. Raises ValueError."""
    head = record_head(data)
    if head is None:
        raise ValueError("not a record")
    offset, found = head[0], list[int | bytes | None]()
    for kind in head[1]:
        content = data[offset : offset + value_bytes(kind)]
        offset += len(content)
        if kind in (8, 9):
            found.append(kind - 8)
        elif 0 < kind < 7:
            found.append(int.from_bytes(content, signed=True))
        else:
            found.append(None if kind == 0 else content)
    return found


def _is(column: str, kind: int) -> bool:
    whole = 0 < kind < 7 or kind in (8, 9)
    if column in ("TEXT", "BLOB"):
        return kind >= 12 and kind % 2 == (column == "TEXT")
    return kind == 0 if column == "NULL" else whole or (column == "REAL" and kind == 7)
