"""The codec of a segment: messages of one log, committed together, packed into one row.

Layout, little-endian, lengths in bytes::

    version u8 | width u8 | runs u32
    runs x (address length u16 | device length u16 | properties length u32 | flags u16 | messages u32
            | received at i64 | first sequence u64)
    runs x (address | device | properties)      UTF-8, UTF-8, as they came
    messages x body length                       unsigned, `width` bytes each (1, 2 or 4)
    bodies

Version 2, of thinned messages, has positions missing: its runs have ``| offset u32`` more, the place of the run's first
message after the position in the key, and `SegmentRow.messages` is the span of positions, which no other segment uses.

Version 3 is one of the others under zstd: ``3 u8 | zstd frame``, which says how long it was. Messages that may wait for
company come that way (``durability: batch``): where a hundred devices sent a message each, the heads of the runs are a
third of the segment and say much the same.

Lengths stand together so that packing and unpacking a thousand bodies is one call each: nothing here loops over
messages in Python except the slicing. A CRC-32 over the row's other columns and the data shows every torn or rotten
segment; it is a column of its own, so that it needs no copy of the data.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from bridge.hidden import hides
from bridge.message import Run, Stored
from edge.broker.store.limits import PACKED_BYTES_MIN, POSITION_MAX
from edge.broker.store.loops import PLAIN, PREAMBLE, RUN, SPARSE, SPARSE_RUN, WIDTHS, pack

VERSION: Final = PLAIN
PACKED: Final = 3

_COLUMNS: Final = struct.Struct("<qqqqq")


class SegmentDamaged(ValueError):
    """A segment's bytes are not what was written."""


@hides("data")
class SegmentRow(NamedTuple):
    """A segment as a row of table ``segment``, columns in order."""

    key: int
    """``log << POSITION_BITS | first position``"""
    messages: int
    """How many positions it covers, from the one in `key` on."""
    body_bytes: int
    boot: int
    """Row of table ``boot``."""
    monotonic_ns: int
    """Clock of that boot when the segment was sealed."""
    crc: int
    data: bytes


SELECT: Final = f"SELECT {', '.join(SegmentRow._fields)} FROM segment"  # noqa: S608 - names of our own
"""Rows of table ``segment``."""

_MARKS: Final = ", ".join("?" * len(SegmentRow._fields))
INSERT: Final = f"INSERT INTO segment ({', '.join(SegmentRow._fields)}) VALUES ({_MARKS})"  # noqa: S608
"""One row of it."""


class SegmentRunName(NamedTuple):
    """What a run is called, without its bodies."""

    address: str
    sequence: int
    messages: int


def encode(
    key: int, boot: int, monotonic_ns: int, runs: Sequence[Stored], *, span: int | None = None, packed: bool = False
) -> SegmentRow:
    """Pack runs whose positions follow on from the one in `key`; with a `span` they are any of that many positions.
    `packed`: compress what that makes smaller.

    Raises struct.error, OverflowError or UnicodeEncodeError for what `Run` does not allow (lengths of names are checked
    at append).
    """
    data, messages, size = pack(list(runs), -1 if span is None else key & POSITION_MAX)
    if packed and len(data) >= PACKED_BYTES_MIN:
        from edge.broker.store.compression import compress  # noqa: PLC0415 - most gateways never need it

        data = min(bytes((PACKED,)) + compress(data), data, key=len)
    row = SegmentRow(key, messages if span is None else span, size, boot, monotonic_ns, 0, data)
    return row._replace(crc=_checksum(row))


def is_packed(row: SegmentRow) -> bool:
    """True when the row's data is compressed."""
    return row.data[:1] == bytes((PACKED,))


def is_sparse(row: SegmentRow) -> bool:
    """True when positions may be missing in a verified row. Raises SegmentDamaged."""
    return _plain(row)[0] == SPARSE


def verify(row: SegmentRow) -> None:
    """Raises SegmentDamaged when the row is not as it was written."""
    try:
        sound = _checksum(row) == row.crc
    except (struct.error, TypeError) as error:  # a rotten page can give a column another type
        raise SegmentDamaged(f"columns cannot be read: {error}") from error
    if not sound:
        raise SegmentDamaged("checksum does not match")


def extent(row: SegmentRow) -> int:
    """How many positions a row takes, as far as a damaged one says: at least one."""
    return max(row.messages, 1) if isinstance(row.messages, int) else 1


def heads(row: SegmentRow) -> list[SegmentRunName]:
    """Address, first sequence and count of every run. Raises SegmentDamaged."""
    verify(row)
    return [SegmentRunName(run.address, sequence, count) for sequence, count, run, _ in _runs(_plain(row))[1]]


def decode(row: SegmentRow, position: int) -> list[Stored]:
    """The runs of a verified row, the first of which is at `position`. Raises SegmentDamaged."""
    verify(row)
    return _unpacked(row, position)


def remains(row: SegmentRow, position: int) -> list[Stored]:
    """What a row that fails its checksum still says, when its lengths add up. Raises SegmentDamaged.

    A compressed one says nothing: a flipped bit there changes whatever comes after it.
    """
    try:
        if is_packed(row):
            raise SegmentDamaged("compressed")
        runs = _unpacked(row, position)
    except TypeError as error:  # a rotten page can give a column another type
        raise SegmentDamaged(str(error)) from error
    if sum(len(body) for stored in runs for body in stored.run.bodies) != row.body_bytes:
        raise SegmentDamaged("sizes do not add up")
    return runs


def _unpacked(row: SegmentRow, position: int) -> list[Stored]:
    data = _plain(row)
    offset, runs = _runs(data)
    sparse, width, total = data[0] == SPARSE, data[1], sum(count for _, count, _, _ in runs)
    fits = _in_order(runs, row.messages) if sparse else total == row.messages
    if not fits or offset + total * width > len(data):
        raise SegmentDamaged("run lengths do not add up")
    lengths = struct.unpack_from(f"<{total}{WIDTHS[width]}", data, offset)
    ends = list(accumulate(lengths, initial=offset + total * width))
    if ends[-1] != len(data):
        raise SegmentDamaged("body lengths do not add up")
    bodies = [data[start:stop] for start, stop in pairwise(ends)]
    stored: list[Stored] = []
    taken = 0
    for sequence, count, run, place in runs:
        run.bodies = bodies[taken : taken + count]
        stored.append(Stored(position + (place if sparse else taken), sequence, run))
        taken += count
    return stored


def split(stored: Stored, bytes_max: int) -> Iterator[Stored]:
    """Parts of a run with at most `bytes_max` of bodies each, and at least one message."""
    run = stored.run
    start = size = 0
    for index, body in enumerate(run.bodies):
        if size and size + len(body) > bytes_max:
            yield Stored(stored.position + start, stored.sequence + start, run.part(start, index))
            start, size = index, 0
        size += len(body)
    yield Stored(stored.position + start, stored.sequence + start, run.part(start, len(run.bodies)))


def _plain(row: SegmentRow) -> bytes:
    """The data of a verified row as it was before compression. Raises SegmentDamaged."""
    if not is_packed(row):
        return row.data
    from edge.broker.store.compression import decompress  # noqa: PLC0415 - as above

    try:
        return decompress(row.data[1:])
    except ValueError as error:
        raise SegmentDamaged(str(error)) from error


def _checksum(row: SegmentRow) -> int:
    columns = _COLUMNS.pack(row.key, row.messages, row.body_bytes, row.boot, row.monotonic_ns)
    return zlib.crc32(row.data, zlib.crc32(columns))


def _in_order(runs: Sequence[tuple[int, int, Run, int]], span: int) -> bool:
    """True when the runs of a sparse segment lie behind one another, within its span."""
    end = 0
    for _, count, _, place in runs:
        if place < end:
            return False
        end = place + count
    return end <= span


def _runs(data: bytes) -> tuple[int, list[tuple[int, int, Run, int]]]:
    """(offset of the body lengths, [(first sequence, messages, run without bodies, offset of its position or 0)])."""
    try:
        version, width, count = PREAMBLE.unpack_from(data)
        if version not in (VERSION, SPARSE) or width not in WIDTHS:
            raise SegmentDamaged(f"version {version}, width {width}: not a segment")
        shape = RUN if version == VERSION else SPARSE_RUN
        offset = PREAMBLE.size + count * shape.size
        fields = list(shape.iter_unpack(data[PREAMBLE.size : offset]))
        if len(fields) != count:
            raise SegmentDamaged("truncated")
        runs: list[tuple[int, int, Run, int]] = []
        for address_size, device_size, properties_size, flags, messages, received_at, sequence, *place in fields:
            device_at = offset + address_size
            properties_at = device_at + device_size
            end = properties_at + properties_size
            if end > len(data):
                raise SegmentDamaged("truncated")
            address, device = data[offset:device_at].decode(), data[device_at:properties_at].decode()
            run = Run(address, device, flags, data[properties_at:end], [], received_at)
            runs.append((sequence, messages, run, place[0] if place else 0))
            offset = end
    except (struct.error, UnicodeDecodeError) as error:
        raise SegmentDamaged(str(error)) from error
    return offset, runs
