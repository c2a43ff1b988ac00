"""Codec of a segment: messages of one log that were committed together, packed into one row.

Layout, little-endian, lengths in bytes::

    version u8 | width u8 | runs u32
    runs x (address length u16 | device length u16 | properties length u32 | flags u16 | messages u32
            | received at i64 | first sequence u64)
    runs x (address | device | properties)      UTF-8, UTF-8, as received
    messages x body length                       unsigned, `width` bytes each (1, 2 or 4)
    bodies

Version 2 is sparse, for thinned messages. Its runs have an additional field ``| offset u32``, the distance of their
first message from the position in the key. `SegmentRow.messages` is the span of positions of the segment.

Version 3 is one of the others compressed with zstd: ``3 u8 | zstd frame``. The frame has the original length. It is
used for delayed commits (``durability: batch``). With one message each from a hundred devices, the run headers are a
third of the segment and very similar.

The lengths are stored together, so that packing or unpacking a thousand bodies is one call. In Python only the slicing
is done for each message. A CRC-32 over the other columns and the data detects torn or damaged segments. It is a
separate column, so that it needs no copy of the data.
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
    """The bytes of a segment are not those that were written."""


@hides("data")
class SegmentRow(NamedTuple):
    """Row of table ``segment``, columns in order."""

    key: int
    """``log << POSITION_BITS | first position``"""
    messages: int
    """Number of positions covered, from the one in `key` on."""
    body_bytes: int
    boot: int
    """Row of table ``boot``."""
    monotonic_ns: int
    """Clock of that boot when the segment was sealed."""
    crc: int
    data: bytes


SELECT: Final = f"SELECT {', '.join(SegmentRow._fields)} FROM segment"  # noqa: S608 - names of our own
"""Selects rows of table ``segment``."""

_MARKS: Final = ", ".join("?" * len(SegmentRow._fields))
INSERT: Final = f"INSERT INTO segment ({', '.join(SegmentRow._fields)}) VALUES ({_MARKS})"  # noqa: S608
"""Inserts one row."""


class SegmentRunName(NamedTuple):
    """Address, first sequence and number of messages of a run, without its bodies."""

    address: str
    sequence: int
    messages: int


def encode(
    key: int, boot: int, monotonic_ns: int, runs: Sequence[Stored], *, span: int | None = None, packed: bool = False
) -> SegmentRow:
    """Pack runs into a row. Their positions are dense from the one in `key`; with a `span` some of them may be missing.

    `packed`: compress the data if that makes it smaller. Raises struct.error, OverflowError or UnicodeEncodeError for
    values that `Run` does not allow. The lengths of names are checked at append.
    """
    data, messages, size = pack(list(runs), -1 if span is None else key & POSITION_MAX)
    if packed and len(data) >= PACKED_BYTES_MIN:
        from edge.broker.store.compression import compress  # noqa: PLC0415 - most gateways never need it

        data = min(bytes((PACKED,)) + compress(data), data, key=len)
    row = SegmentRow(key, messages if span is None else span, size, boot, monotonic_ns, 0, data)
    return row._replace(crc=_checksum(row))


def is_packed(row: SegmentRow) -> bool:
    """Return True when the data is compressed."""
    return row.data[:1] == bytes((PACKED,))


def is_sparse(row: SegmentRow) -> bool:
    """Return True when positions may be missing in a verified row. Raises SegmentDamaged."""
    return _plain(row)[0] == SPARSE


def verify(row: SegmentRow) -> None:
    """Check that the row is as it was written. Raises SegmentDamaged."""
    try:
        valid = _checksum(row) == row.crc
    except (struct.error, TypeError) as error:  # a damaged page can change the type of a column
        raise SegmentDamaged(f"columns cannot be read: {error}") from error
    if not valid:
        raise SegmentDamaged("checksum does not match")


def extent(row: SegmentRow) -> int:
    """Return the number of positions of a row, which may be damaged: at least one."""
    return max(row.messages, 1) if isinstance(row.messages, int) else 1


def run_names(row: SegmentRow) -> list[SegmentRunName]:
    """Return address, first sequence and messages of every run. Raises SegmentDamaged."""
    verify(row)
    return [SegmentRunName(run.address, sequence, count) for sequence, count, run, _ in _runs(_plain(row))[1]]


def decode(row: SegmentRow, position: int) -> list[Stored]:
    """Verify a row and return its runs. The first is at `position`. Raises SegmentDamaged."""
    verify(row)
    return _unpacked(row, position)


def decode_damaged(row: SegmentRow, position: int) -> list[Stored]:
    """Return the runs of a row with a wrong checksum, if its lengths add up. Raises SegmentDamaged.

    This is impossible for a compressed row, where a flipped bit changes everything after it.
    """
    try:
        if is_packed(row):
            raise SegmentDamaged("compressed")
        runs = _unpacked(row, position)
    except TypeError as error:  # a damaged page can change the type of a column
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
    for sequence, count, run, distance in runs:
        run.bodies = bodies[taken : taken + count]
        stored.append(Stored(position + (distance if sparse else taken), sequence, run))
        taken += count
    return stored


def split(stored: Stored, bytes_max: int) -> Iterator[Stored]:
    """Split a run into parts with at most `bytes_max` of bodies each, and at least one message."""
    run = stored.run
    start = size = 0
    for index, body in enumerate(run.bodies):
        if size and size + len(body) > bytes_max:
            yield Stored(stored.position + start, stored.sequence + start, run.part(start, index))
            start, size = index, 0
        size += len(body)
    yield Stored(stored.position + start, stored.sequence + start, run.part(start, len(run.bodies)))


def _plain(row: SegmentRow) -> bytes:
    """Return the uncompressed data of a verified row. Raises SegmentDamaged."""
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
    """Return True when the runs of a sparse segment are in order and within its span."""
    end = 0
    for _, count, _, distance in runs:
        if distance < end:
            return False
        end = distance + count
    return end <= span


def _runs(data: bytes) -> tuple[int, list[tuple[int, int, Run, int]]]:
    """Return (offset of the body lengths, [(first sequence, messages, run without bodies, its position offset or
    0)])."""
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
        for address_size, device_size, properties_size, flags, messages, received_at, sequence, *distance in fields:
            device_at = offset + address_size
            properties_at = device_at + device_size
            end = properties_at + properties_size
            if end > len(data):
                raise SegmentDamaged("truncated")
            address, device = data[offset:device_at].decode(), data[device_at:properties_at].decode()
            run = Run(address, device, flags, data[properties_at:end], [], received_at)
            runs.append((sequence, messages, run, distance[0] if distance else 0))
            offset = end
    except (struct.error, UnicodeDecodeError) as error:
        raise SegmentDamaged(str(error)) from error
    return offset, runs
