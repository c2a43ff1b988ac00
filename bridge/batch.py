"""The batch: many messages of one gateway in one AMQP delivery, as columns under zstd (message-format 0x57500001).

A batch carries *ranges*. A range is a dense piece of the sequence of one address, so that (gateway, epoch, address,
sequence) names every message at no cost for each. Decision 0001 explains why a batch has several ranges and why
metadata is stored per run, not per message. Layout, all integers little-endian, no alignment::

    head     magic "WPB" 0x01 | crc32 u32 of all that follows | codec u8 | lane u8 | zero u16
             messages u32 | ranges u32 | table: size u32, packed u32 | columns: size u32, packed u32
             space length u16 | epoch length u16 | space | epoch            (both UTF-8)
    table    compressed columns: address length u32, base u64, first sequence u64, messages u32; addresses
    columns  compressed: runs u32
             devices u32, length u32 each, UTF-8 | properties u32, length u32 each, bytes     (the dictionaries)
             per run: messages u32, device u32, properties u32, received-at i64 (difference to the previous run,
             the first to zero), flags u8 | per message: body length u32 | bodies

``size`` is a section's length before compression and ``packed`` its length as sent; a reader checks ``size`` before it
unpacks anything. Integer columns are stored plane by plane (all lowest bytes, then all second bytes, ...), so that zstd
sees small numbers as runs of zeros.

This module knows no link, no store and no clock. `encode` and `decode` may be called from any thread.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import Final

from bridge.batch_content import AddressRange, BatchContent, read
from bridge.columns import FAST, BatchError, Codec, ColumnReader, dictionary, pack, planes, unpack
from bridge.lane import BatchLane
from bridge.limits import (
    BATCH_COLUMNS_BYTES_MAX,
    BATCH_EXPANDED_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    BATCH_NAME_BYTES_MAX,
    BATCH_RANGES_MAX,
    BATCH_TABLE_BYTES_MAX,
    HELD_MESSAGE_BYTES,
    HELD_RANGE_BYTES,
)
from bridge.message import Run, Stored

__all__ = [
    "CAPABILITY",
    "MESSAGE_FORMAT",
    "Batch",
    "BatchError",
    "Codec",
    "BatchLane",
    "AddressRange",
    "decode",
    "encode",
]

MESSAGE_FORMAT: Final = 0x5750_0001
"""The AMQP message-format of a transfer that carries a batch (AMQP 1.0 section 2.7.5); see decision 0002."""
CAPABILITY: Final = "waypost:batch/1"
"""Link capability: the sender desires it; a receiver that understands batches offers it."""

EXPANSION_CHECKED_BYTES: Final = 4 << 20
"""The expanded size of a batch is summed up exactly when its upper bound is larger than this."""
UTF8_BYTES_MAX: Final = 4
"""Most bytes of a character in UTF-8."""

_MAGIC: Final = b"WPB\x01"
_HEAD: Final = struct.Struct("<4sIBBHIIIIIIHH")
_CHECKED_FROM: Final = 8  # the checksum covers everything after itself


@dataclass(slots=True, repr=False)
class Batch:
    """A decoded batch."""

    space: str
    epoch: str
    lane: BatchLane
    ranges: list[AddressRange]
    run_lengths: Sequence[int]
    """Number of messages of each run; the next four columns have one entry per run."""
    devices: list[str]
    received_at: list[int]
    """UTC nanoseconds."""
    flags: Sequence[int]
    properties: list[bytes]
    bodies: list[bytes]
    """One entry per message, in the order of the ranges."""
    size: int
    """Approximate memory of this batch, in bytes."""
    expanded: int
    """Bytes of its messages with the names and properties of each written out, as the lake stores them."""

    def __len__(self) -> int:
        return len(self.bodies)

    def __repr__(self) -> str:
        """Return counts and sizes, without bodies."""
        return f"<Batch of {self.space!r}, {len(self.ranges)} ranges, {len(self)} messages, {self.size} bytes>"

    def stored(self) -> list[Stored]:
        """Return every message, as runs with their sequences, in the order of the ranges; positions are -1."""
        result: list[Stored] = []
        pieces = iter(self.ranges)
        piece, left, sequence, start = None, 0, 0, 0
        for index, length in enumerate(self.run_lengths):
            if piece is None or not left:
                piece = next(pieces)
                left, sequence = piece.count, piece.first
            run = Run(
                piece.address,
                self.devices[index],
                self.flags[index],
                self.properties[index],
                self.bodies[start : start + length],
                self.received_at[index],
            )
            result.append(Stored(-1, sequence, run))
            left, sequence, start = left - length, sequence + length, start + length
        return result


# --- encoding -----------------------------------------------------------------------------------------------------


def encode(
    stored: Sequence[Stored],
    *,
    space: str,
    epoch: str,
    lane: BatchLane = BatchLane.LIVE,
    bases: Mapping[str, int] | None = None,
    codec: Codec = Codec.ZSTD,
    level: int = FAST,
) -> bytes:
    """Encode these runs, given in log order, as a batch; the order within each address is kept.

    `level`: `bridge.columns.FAST` or `SMALL`.

    `bases` gives the first sequence that is to be sent for an address, 0 when it is missing. With `Codec.ZSTD` a batch
    that would not get smaller is sent uncompressed. Raises `ValueError` for no messages, an empty run, a negative
    sequence, or when a limit is exceeded; the caller must avoid these.
    """
    ranges, runs, address_max = _group(stored, bases or {})
    bodies = list(chain.from_iterable([run.bodies for run in runs]))
    if not 0 < len(bodies) <= BATCH_MESSAGES_MAX:
        raise ValueError(f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, not {len(bodies)}")
    table, (columns, longest) = _table(ranges), _columns(runs, bodies)
    if len(table) > BATCH_TABLE_BYTES_MAX or len(columns) > BATCH_COLUMNS_BYTES_MAX:
        raise ValueError(f"too large for a batch: {len(table)} + {len(columns)} bytes")
    longest += address_max * UTF8_BYTES_MAX
    if len(columns) + len(bodies) * longest > BATCH_EXPANDED_BYTES_MAX:
        named = [(run.device, run.properties, len(run.bodies)) for run in runs]
        expanded = len(columns) + _expanded_names(ranges, named)
        if expanded > BATCH_EXPANDED_BYTES_MAX:
            raise ValueError(f"too large for a batch: its messages have {expanded} bytes together")
    packed_table, packed_columns = table, columns
    if codec is Codec.ZSTD:
        packed_table, packed_columns = pack(table, level), pack(columns, level)
        if len(packed_table) + len(packed_columns) >= len(table) + len(columns):
            codec, packed_table, packed_columns = Codec.NONE, table, columns
    names = (space.encode(), epoch.encode())
    head = _HEAD.pack(
        *(_MAGIC, 0, codec, lane, 0, len(bodies), len(ranges)),
        *(len(table), len(packed_table), len(columns), len(packed_columns)),
        *map(len, names),
    )
    checked = b"".join((head[_CHECKED_FROM:], *names, packed_table, packed_columns))
    return b"".join((_MAGIC, zlib.crc32(checked).to_bytes(4, "little"), checked))


def _group(stored: Sequence[Stored], bases: Mapping[str, int]) -> tuple[list[AddressRange], list[Run], int]:
    """Group the runs by address and cut each address into dense ranges.

    Return ranges, runs, and the number of characters of the longest address.
    """
    by_address: dict[str, list[Stored]] = {}
    for item in stored:
        address = item.run.address
        if address in by_address:
            by_address[address].append(item)
        else:
            by_address[address] = [item]
    ranges: list[AddressRange] = []
    runs: list[Run] = []
    for address, items in by_address.items():
        base = bases.get(address, 0)
        first = following = items[0].sequence
        for _, sequence, run in items:
            if sequence != following:
                ranges.append(AddressRange(address, min(base, first), first, following - first))
                first = following = sequence
            following += len(run.bodies)
            runs.append(run)
        ranges.append(AddressRange(address, min(base, first), first, following - first))
    return ranges, runs, max(map(len, by_address), default=0)


def _table(ranges: list[AddressRange]) -> bytes:
    addresses = [r.address.encode() for r in ranges]
    try:
        bases, firsts = array("Q", [r.base for r in ranges]), array("Q", [r.first for r in ranges])
    except OverflowError:
        raise ValueError("a sequence is negative or beyond 63 bits") from None
    counts = array("I", [r.count for r in ranges])
    return b"".join((planes(array("I", map(len, addresses))), *map(planes, (bases, firsts, counts)), *addresses))


def _expanded_names(ranges: Iterable[AddressRange], runs: Iterable[tuple[str, bytes, int]]) -> int:
    """Return the bytes of all messages' addresses, devices and properties. `runs`: device, properties, messages."""
    named = sum(len(r.address.encode()) * r.count for r in ranges)
    return named + sum((len(device.encode()) + len(properties)) * count for device, properties, count in runs)


def _columns(runs: list[Run], bodies: list[bytes]) -> tuple[bytes, int]:
    """Return the columns, and an upper bound for the bytes of device and properties of one message."""
    lengths = array("I", [len(run.bodies) for run in runs])
    if 0 in lengths:
        raise ValueError("a run without messages")
    devices: dict[str, int] = {}
    properties: dict[bytes, int] = {}
    # len() is evaluated before setdefault inserts, so it is the next free index
    device_index = array("I", [devices.setdefault(run.device, len(devices)) for run in runs])
    properties_index = array("I", [properties.setdefault(run.properties, len(properties)) for run in runs])
    received = [run.received_at for run in runs]
    columns = b"".join(
        (
            len(runs).to_bytes(4, "little"),
            dictionary([device.encode() for device in devices]),
            dictionary(list(properties)),
            *map(planes, (lengths, device_index, properties_index)),
            planes(array("q", map(sub, received, chain((0,), received)))),
            bytes([run.flags for run in runs]),
            planes(array("I", map(len, bodies))),
            *bodies,
        )
    )
    return columns, max(map(len, devices)) * UTF8_BYTES_MAX + max(map(len, properties))


# --- decoding -----------------------------------------------------------------------------------------------------


def decode(data: bytes) -> Batch:
    """Decode a batch. Raises `BatchError` for anything that `encode` cannot have written."""
    if len(data) < _HEAD.size:
        raise BatchError(f"{len(data)} bytes are too short for the head of a batch")
    head = _HEAD.unpack_from(data)
    magic, checksum, codec, lane, zero, messages, ranges = head[:7]
    table_size, table_packed, columns_size, columns_packed, space_length, epoch_length = head[7:]
    if magic != _MAGIC:
        raise BatchError(f"magic or version {magic!r} is not {_MAGIC!r}")
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise BatchError("checksum does not match")
    if codec not in iter(Codec) or lane not in iter(BatchLane) or zero:
        raise BatchError(f"unknown codec {codec}, lane {lane} or reserved bits {zero:#x}")
    if not 0 < ranges <= messages <= BATCH_MESSAGES_MAX or ranges > BATCH_RANGES_MAX:
        raise BatchError(f"{messages} messages in {ranges} ranges")
    if space_length > BATCH_NAME_BYTES_MAX or epoch_length > BATCH_NAME_BYTES_MAX:
        raise BatchError(f"names of {space_length} and {epoch_length} bytes")
    if table_size > BATCH_TABLE_BYTES_MAX or columns_size > BATCH_COLUMNS_BYTES_MAX:
        limits = f"{BATCH_TABLE_BYTES_MAX} + {BATCH_COLUMNS_BYTES_MAX}"
        raise BatchError(f"declares {table_size} + {columns_size} bytes, more than {limits}")
    reader = ColumnReader(data, _HEAD.size)
    space, epoch = reader.text(space_length), reader.text(epoch_length)
    table = unpack(codec, reader.take(table_packed), table_size)
    columns = unpack(codec, reader.take(columns_packed), columns_size)
    reader.finish()
    return _batch((space, epoch, BatchLane(lane)), read(table, columns, ranges, messages), columns)


def _batch(names: tuple[str, str, BatchLane], content: BatchContent, columns: bytes) -> Batch:
    messages, ranges = len(content.bodies), content.ranges
    expanded = len(columns) + messages * content.longest
    if expanded > EXPANSION_CHECKED_BYTES:
        runs = zip(content.devices, content.properties, content.run_lengths, strict=True)
        expanded = len(columns) + _expanded_names(ranges, runs)
        if expanded > BATCH_EXPANDED_BYTES_MAX:
            raise BatchError(f"its messages have {expanded} bytes together, more than {BATCH_EXPANDED_BYTES_MAX}")
    return Batch(
        *names,
        content.ranges,
        content.run_lengths,
        content.devices,
        content.received_at,
        content.flags,
        content.properties,
        content.bodies,
        size=len(columns) + HELD_MESSAGE_BYTES * messages + HELD_RANGE_BYTES * len(ranges),
        expanded=expanded,
    )


def cost(data: bytes) -> int:
    """Return the memory in bytes that a batch will need once decoded, from its head alone; 0 without a valid head."""
    if len(data) < _HEAD.size:
        return 0
    messages, ranges, _, _, columns_size = _HEAD.unpack_from(data)[5:10]
    return int(columns_size) + HELD_MESSAGE_BYTES * int(messages) + HELD_RANGE_BYTES * int(ranges)
