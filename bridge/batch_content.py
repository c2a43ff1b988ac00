"""What is in a batch: its ranges, runs and bodies, read from its two sections as they are after the codec.

`bridge.batch` says how they are laid out. A fleet's batches have some ten readings each, so what is done once a batch
and a range counts: it is done in C (`batch_content.c`), and here where that was not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bridge import libraries
from bridge.columns import BatchError, Reader
from bridge.hidden import hides

SOURCE: Final = Path(libraries.ROOT, "bridge", "batch_content.c")
ENTRY: Final = "waypost_batch_content"

SEQUENCE_MAX: Final = (1 << 63) - 1
"""Sequences are `bigint` in the lake."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """A dense piece of the sequence of one address.

    ``base`` is the first sequence this forwarder owes for that address (what came before the forwarder was made is
    nobody's gap), so the next one a hub expects is ``max(mark + 1, base)``. ``base <= first``.
    """

    address: str
    base: int
    first: int
    count: int


@hides("properties", "bodies")
class Content(NamedTuple):
    """What a batch says; a run has one entry in each of `devices`, `received_at`, `flags` and `properties`."""

    ranges: list[Range]
    run_lengths: Sequence[int]
    """Messages of each run."""
    devices: list[str]
    received_at: list[int]
    """UTC nanoseconds."""
    flags: bytes
    properties: list[bytes]
    bodies: list[bytes]
    """One entry a message, in the order of the ranges."""
    longest: int
    """Bytes of the longest address, device and properties together: no message has more of them."""


def read(table: bytes, columns: bytes, ranges: int, messages: int) -> Content:
    """The content of a batch of so many ranges and messages. Raises `BatchError` where its sections do not say that."""
    compiled = reader()
    found = compiled(table, columns, ranges, messages, Range) if compiled is not None else None
    return interpreted(table, columns, ranges, messages) if found is None else Content(*found)


# --- in Python ----------------------------------------------------------------------------------------------------


def interpreted(table: bytes, columns: bytes, ranges: int, messages: int) -> Content:
    """As `read`, and the one that says what is wrong."""
    found, address_max = _read_table(table, ranges, messages)
    reader = Reader(columns, 0)
    runs = reader.count()
    if not len(found) <= runs <= messages:
        raise BatchError(f"{runs} runs for {messages} messages in {len(found)} ranges")
    device_lengths = reader.column("I", _entries(reader, runs))
    devices = reader.texts(device_lengths)
    property_lengths = reader.column("I", _entries(reader, runs))
    properties = reader.slices(property_lengths)
    run_lengths = reader.column("I", runs)
    if 0 in run_lengths or sum(run_lengths) != messages:
        raise BatchError("the runs do not add up to the messages")
    if runs != messages and not set(accumulate(r.count for r in found)) <= set(accumulate(run_lengths)):
        raise BatchError("a run crosses the end of a range")
    device_index, property_index = reader.column("I", runs), reader.column("I", runs)
    if max(device_index) >= len(devices) or max(property_index) >= len(properties):
        raise BatchError("an index points outside its dictionary")
    received_at = list(accumulate(reader.column("q", runs)))
    if min(received_at) < 0 or max(received_at) > SEQUENCE_MAX:
        raise BatchError("a received-at is outside 63 bits")
    flags = reader.take(runs)
    bodies = reader.slices(reader.column("I", messages))
    reader.finish()
    return Content(
        found,
        list(run_lengths),
        [devices[index] for index in device_index],
        received_at,
        flags,
        [properties[index] for index in property_index],
        bodies,
        address_max + max(device_lengths) + max(property_lengths),
    )


def _read_table(table: bytes, ranges: int, messages: int) -> tuple[list[Range], int]:
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


def _entries(reader: Reader, runs: int) -> int:
    """Entries of a dictionary: every one is of some run."""
    entries = reader.count()
    if entries > runs:
        raise BatchError(f"a dictionary of {entries} for {runs} runs")
    return entries


# --- in C ---------------------------------------------------------------------------------------------------------


Compiled = Callable[[bytes, bytes, int, int, type[Range]], tuple[Any, ...] | None]
"""As `interpreted`, with the class of ranges: the fields of a `Content`; None where it is no batch."""


def library_path() -> Path:
    """Where the compiled `batch_content.c` has to be. Raises OSError when the source is not there."""
    return libraries.library_path(SOURCE)


def load() -> Compiled:
    """Raises OSError when it was not compiled, or is not what it should be."""
    made: Compiled = libraries.entry_of(library_path(), ENTRY)()
    return made


@cache
def reader() -> Compiled | None:
    """That of this process; None where batches are read in Python."""
    return libraries.unless_python(load, "batches are read in Python, which takes three times as long")
