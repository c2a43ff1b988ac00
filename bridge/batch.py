"""The batch: many messages of one gateway in one AMQP delivery, as columns under zstd (message-format 0x57500001).

A batch carries *ranges*. A range is a dense piece of the sequence of one address, so that (gateway, epoch, address,
sequence) names every message without a word spent on each. Decision 0001 says why a batch has several ranges and why
metadata is kept a run and not a message. Layout, all integers little-endian, no alignment::

    head     magic "WPB" 0x01 | crc32 u32 of all that follows | codec u8 | lane u8 | zero u16
             messages u32 | ranges u32 | table: size u32, packed u32 | columns: size u32, packed u32
             space length u16 | epoch length u16 | space | epoch            (both UTF-8)
    table    under the codec, a column each: address length u32, base u64, first sequence u64, messages u32; addresses
    columns  under the codec: runs u32
             devices u32, length u32 each, UTF-8 | properties u32, length u32 each, bytes     (the dictionaries)
             a run each: messages u32, device u32, properties u32, received-at i64 (difference to the run before,
             the first to zero), flags u8 | a message each: body length u32 | bodies

``size`` is a section's length before the codec and ``packed`` its length as sent; a reader checks the first before it
unpacks anything. Integer columns are stored plane by plane (all lowest bytes, then all second ones, ...), which costs
nothing here and lets zstd see small numbers as runs of zeros.

This module knows no link, no store and no clock. `encode` and `decode` may be called from any thread.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from operator import sub
from typing import Final, NamedTuple, TypeVar

import msgspec

from bridge.columns import FAST, BatchError, Codec, Reader, dictionary, pack, planes, unpack
from bridge.lane import Lane
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
    "Lane",
    "Messages",
    "Range",
    "decode",
    "encode",
]

MESSAGE_FORMAT: Final = 0x5750_0001
"""The AMQP message-format of a transfer that carries a batch (AMQP 1.0 section 2.7.5); see decision 0002."""
CAPABILITY: Final = "waypost:batch/1"
"""Link capability: the sender desires it, a receiver that understands batches offers it."""

SEQUENCE_MAX: Final = (1 << 63) - 1
"""Sequences are `bigint` in the lake."""

EXPANSION_LOOKED_AT_BYTES: Final = 4 << 20
"""What a batch expands to is added up where it may be more than this; else the most it may be is near enough."""
UTF8_BYTES_MAX: Final = 4
"""Bytes of a character."""

_MAGIC: Final = b"WPB\x01"
_HEAD: Final = struct.Struct("<4sIBBHIIIIIIHH")
_CHECKED_FROM: Final = 8  # the checksum covers everything after itself

T = TypeVar("T")


class Range(msgspec.Struct, frozen=True, gc=False):
    """A dense piece of the sequence of one address.

    ``base`` is the first sequence this forwarder owes for that address (what came before the forwarder was made is
    nobody's gap), so the next one a hub expects is ``max(mark + 1, base)``. ``base <= first``.
    """

    address: str
    base: int
    first: int
    count: int


class Messages(NamedTuple):
    """The messages of a batch as columns of equal length, range after range."""

    address: list[str]
    sequence: list[int]
    device: list[str]
    received_at: list[int]
    """UTC nanoseconds."""
    flags: list[int]
    properties: list[bytes]
    body: list[bytes]

    def __repr__(self) -> str:
        """Counts and sizes, no bodies."""
        return f"<columns of {len(self.body)} messages, {sum(map(len, self.body))} bytes>"


@dataclass(slots=True, repr=False)
class Batch:
    """A decoded batch. `ranges` and what the methods return follow `trim`; the columns stay as they arrived."""

    space: str
    epoch: str
    lane: Lane
    ranges: list[Range]
    run_lengths: Sequence[int]
    """Messages of each run; the four columns after it have one entry a run."""
    devices: list[str]
    received_at: list[int]
    flags: Sequence[int]
    properties: list[bytes]
    bodies: list[bytes]
    """One entry a message, in the order of the ranges."""
    size: int
    """What holding this batch costs, in bytes, near enough."""
    expanded: int
    """Bytes of its messages with the names and properties of each written out: what landing it costs."""
    _kept: list[tuple[int, int]] = field(default_factory=list)
    _trimmed: bool = False

    def __post_init__(self) -> None:
        self._kept = list(pairwise(accumulate((r.count for r in self.ranges), initial=0)))

    def __len__(self) -> int:
        return sum(r.count for r in self.ranges)

    def __repr__(self) -> str:
        """Counts and sizes, no bodies."""
        return f"<Batch of {self.space!r}, {len(self.ranges)} ranges, {len(self)} messages, {self.size} bytes>"

    def trim(self, index: int, below: int) -> int:
        """Drop the messages of ``ranges[index]`` whose sequence is below `below`; returns how many were dropped.

        The range stays in its place, with a count of 0 when nothing of it is left.
        """
        whole = self.ranges[index]
        drop = min(max(below - whole.first, 0), whole.count)
        if drop:
            start, stop = self._kept[index]
            self._kept[index] = (start + drop, stop)
            self.ranges[index] = Range(whole.address, whole.base, whole.first + drop, whole.count - drop)
            self._trimmed = True
        return drop

    def messages(self) -> Messages:
        """Every message that is left, as columns (lists, made anew by each call)."""
        return Messages(
            list(chain.from_iterable(repeat(r.address, r.count) for r in self.ranges)),
            list(chain.from_iterable(range(r.first, r.first + r.count) for r in self.ranges)),
            self._select(self._expand(self.devices)),
            self._select(self._expand(self.received_at)),
            self._select(self._expand(list(self.flags))),
            self._select(self._expand(self.properties)),
            self._select(self.bodies),
        )

    def stored(self) -> list[Stored]:
        """Every message that is left, as runs with their sequences, in the order of the ranges; positions are -1."""
        result: list[Stored] = []
        ends = list(accumulate(self.run_lengths))
        index = start = 0
        for piece, (kept_from, kept_to) in zip(self.ranges, self._kept, strict=True):
            while index < len(ends) and ends[index] <= kept_from:
                start = ends[index]
                index += 1
            while index < len(ends) and start < kept_to:
                low = max(start, kept_from)
                run = Run(
                    piece.address,
                    self.devices[index],
                    self.flags[index],
                    self.properties[index],
                    self.bodies[low : ends[index]],
                    self.received_at[index],
                )
                result.append(Stored(-1, piece.first + low - kept_from, run))
                start = ends[index]
                index += 1
        return result

    def _expand(self, column: list[T]) -> list[T]:
        """One entry a run to one entry a message."""
        if len(self.run_lengths) == len(self.bodies):
            return column
        return list(chain.from_iterable(map(repeat, column, self.run_lengths)))

    def _select(self, column: list[T]) -> list[T]:
        """What `trim` has left."""
        if not self._trimmed:
            return list(column)
        return list(chain.from_iterable(column[start:stop] for start, stop in self._kept))


# --- encoding -----------------------------------------------------------------------------------------------------


def encode(
    stored: Sequence[Stored],
    *,
    space: str,
    epoch: str,
    lane: Lane = Lane.LIVE,
    bases: Mapping[str, int] | None = None,
    codec: Codec = Codec.ZSTD,
    level: int = FAST,
) -> bytes:
    """The batch of these runs, given in log order; the order of each address is kept.

    `level`: `bridge.columns.FAST` or `SMALL`.

    `bases` gives the first sequence owed for an address, 0 when it is not named. Under `Codec.ZSTD` a batch that would
    not get smaller is sent unpacked. Raises `ValueError` for no messages, an empty run, a negative sequence, or more
    than the limits above: all of them the caller's to avoid.
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
        said = [(run.device, run.properties, len(run.bodies)) for run in runs]
        expanded = len(columns) + _written_out(ranges, said)
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


def _group(stored: Sequence[Stored], bases: Mapping[str, int]) -> tuple[list[Range], list[Run], int]:
    """Gather the runs by address, and cut each address into dense ranges; the characters of the longest address too."""
    by_address: dict[str, list[Stored]] = {}
    for item in stored:
        address = item.run.address
        if address in by_address:
            by_address[address].append(item)
        else:
            by_address[address] = [item]
    ranges: list[Range] = []
    runs: list[Run] = []
    for address, items in by_address.items():
        base = bases.get(address, 0)
        first = following = items[0].sequence
        for _, sequence, run in items:
            if sequence != following:
                ranges.append(Range(address, min(base, first), first, following - first))
                first = following = sequence
            following += len(run.bodies)
            runs.append(run)
        ranges.append(Range(address, min(base, first), first, following - first))
    return ranges, runs, max(map(len, by_address), default=0)


def _table(ranges: list[Range]) -> bytes:
    addresses = [r.address.encode() for r in ranges]
    try:
        bases, firsts = array("Q", [r.base for r in ranges]), array("Q", [r.first for r in ranges])
    except OverflowError:
        raise ValueError("a sequence is negative or beyond 63 bits") from None
    counts = array("I", [r.count for r in ranges])
    return b"".join((planes(array("I", map(len, addresses))), *map(planes, (bases, firsts, counts)), *addresses))


def _written_out(ranges: Iterable[Range], runs: Iterable[tuple[str, bytes, int]]) -> int:
    """Bytes of every message's address, device and properties. `runs`: device, properties, messages."""
    named = sum(len(r.address.encode()) * r.count for r in ranges)
    return named + sum((len(device.encode()) + len(properties)) * count for device, properties, count in runs)


def _columns(runs: list[Run], bodies: list[bytes]) -> tuple[bytes, int]:
    """The columns, and the most that device and properties of one message may take."""
    lengths = array("I", [len(run.bodies) for run in runs])
    if 0 in lengths:
        raise ValueError("a run without messages")
    devices: dict[str, int] = {}
    properties: dict[bytes, int] = {}
    # len() is taken before setdefault inserts: the next free index
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
    """The batch in `data`. Raises `BatchError` for anything `encode` cannot have made."""
    if len(data) < _HEAD.size:
        raise BatchError(f"{len(data)} bytes are less than a head")
    head = _HEAD.unpack_from(data)
    magic, checksum, codec, lane, zero, messages, ranges = head[:7]
    table_size, table_packed, columns_size, columns_packed, space_length, epoch_length = head[7:]
    if magic != _MAGIC:
        raise BatchError(f"magic or version {magic!r} is not {_MAGIC!r}")
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise BatchError("checksum does not match")
    if codec not in iter(Codec) or lane not in iter(Lane) or zero:
        raise BatchError(f"unknown codec {codec}, lane {lane} or reserved bits {zero:#x}")
    if not 0 < ranges <= messages <= BATCH_MESSAGES_MAX or ranges > BATCH_RANGES_MAX:
        raise BatchError(f"{messages} messages in {ranges} ranges")
    if space_length > BATCH_NAME_BYTES_MAX or epoch_length > BATCH_NAME_BYTES_MAX:
        raise BatchError(f"names of {space_length} and {epoch_length} bytes")
    if table_size > BATCH_TABLE_BYTES_MAX or columns_size > BATCH_COLUMNS_BYTES_MAX:
        limits = f"{BATCH_TABLE_BYTES_MAX} + {BATCH_COLUMNS_BYTES_MAX}"
        raise BatchError(f"declares {table_size} + {columns_size} bytes, more than {limits}")
    reader = Reader(data, _HEAD.size)
    space, epoch = reader.text(space_length), reader.text(epoch_length)
    table = unpack(codec, reader.take(table_packed), table_size)
    columns = unpack(codec, reader.take(columns_packed), columns_size)
    reader.finish()
    return _batch((space, epoch, Lane(lane)), *_read_ranges(table, ranges, messages), columns, messages)


def _read_ranges(table: bytes, ranges: int, messages: int) -> tuple[list[Range], int]:
    """The ranges, and the bytes of the longest address."""
    reader = Reader(table, 0)
    lengths = reader.column("I", ranges)
    bases, firsts = reader.column("Q", ranges), reader.column("Q", ranges)
    counts = reader.column("I", ranges)
    addresses = reader.texts(lengths)
    reader.finish()
    if 0 in counts or sum(counts) != messages:
        raise BatchError("the ranges do not add up to the messages")
    result = list(map(Range, addresses, bases, firsts, counts))
    if any(r.base > r.first or r.first + r.count > SEQUENCE_MAX for r in result):
        raise BatchError("a range begins before its base or ends beyond 63 bits")
    return result, max(lengths)


def _batch(names: tuple[str, str, Lane], ranges: list[Range], address_max: int, columns: bytes, messages: int) -> Batch:
    reader = Reader(columns, 0)
    runs = reader.count()
    if not len(ranges) <= runs <= messages:
        raise BatchError(f"{runs} runs for {messages} messages in {len(ranges)} ranges")
    devices = reader.texts(reader.column("I", _entries(reader, runs)))
    properties = reader.slices(reader.column("I", _entries(reader, runs)))
    run_lengths = reader.column("I", runs)
    if 0 in run_lengths or sum(run_lengths) != messages:
        raise BatchError("the runs do not add up to the messages")
    if runs != messages and not set(accumulate(r.count for r in ranges)) <= set(accumulate(run_lengths)):
        raise BatchError("a run crosses the end of a range")
    device_index, properties_index = reader.column("I", runs), reader.column("I", runs)
    if max(device_index) >= len(devices) or max(properties_index) >= len(properties):
        raise BatchError("an index points outside its dictionary")
    received_at = list(accumulate(reader.column("q", runs)))
    if min(received_at) < 0 or max(received_at) > SEQUENCE_MAX:
        raise BatchError("a received-at is outside 63 bits")
    flags = reader.take(runs)
    bodies = reader.slices(reader.column("I", messages))
    reader.finish()
    expanded = len(columns) + messages * (max(map(len, devices)) * UTF8_BYTES_MAX + max(map(len, properties)))
    expanded += messages * address_max
    if expanded > EXPANSION_LOOKED_AT_BYTES:
        runs_of = zip(device_index, properties_index, run_lengths, strict=True)
        said = ((devices[device], properties[one], count) for device, one, count in runs_of)
        expanded = len(columns) + _written_out(ranges, said)
        if expanded > BATCH_EXPANDED_BYTES_MAX:
            raise BatchError(f"its messages have {expanded} bytes together, more than {BATCH_EXPANDED_BYTES_MAX}")
    return Batch(
        *names,
        ranges,
        run_lengths,
        [devices[index] for index in device_index],
        received_at,
        flags,
        [properties[index] for index in properties_index],
        bodies,
        len(columns) + HELD_MESSAGE_BYTES * messages + HELD_RANGE_BYTES * len(ranges),
        expanded,
    )


def _entries(reader: Reader, runs: int) -> int:
    """Entries of a dictionary: every one is of some run."""
    entries = reader.count()
    if entries > runs:
        raise BatchError(f"a dictionary of {entries} for {runs} runs")
    return entries


def cost(data: bytes) -> int:
    """What holding a batch will cost once it is decoded, by its head alone, in bytes; 0 when that is none."""
    if len(data) < _HEAD.size:
        return 0
    messages, ranges, _, _, columns_size = _HEAD.unpack_from(data)[5:10]
    return int(columns_size) + HELD_MESSAGE_BYTES * int(messages) + HELD_RANGE_BYTES * int(ranges)
