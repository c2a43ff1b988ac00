"""Model of `bridge.batch_content.read` in Python."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from bridge.batch_content import AddressRange, BatchContent
from bridge.columns import BatchError, ColumnReader

SEQUENCE_MAX: Final = (1 << 63) - 1
"""Largest sequence: sequences are `bigint` in the lake."""


def read(table: bytes, columns: bytes, ranges: int, messages: int) -> BatchContent:
    """Return the content of a batch. Raises BatchError."""
    found, address_max = _read_table(table, ranges, messages)
    reader = ColumnReader(columns, 0)
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
    return BatchContent(
        found,
        list(run_lengths),
        [devices[index] for index in device_index],
        received_at,
        flags,
        [properties[index] for index in property_index],
        bodies,
        address_max + max(device_lengths) + max(property_lengths),
    )


def _read_table(table: bytes, ranges: int, messages: int) -> tuple[list[AddressRange], int]:
    """Return the ranges, and the bytes of the longest address."""
    reader = ColumnReader(table, 0)
    lengths = reader.column("I", ranges)
    bases, firsts = reader.column("Q", ranges), reader.column("Q", ranges)
    counts = reader.column("I", ranges)
    addresses = reader.texts(lengths)
    reader.finish()
    if 0 in counts or sum(counts) != messages:
        raise BatchError("the ranges do not add up to the messages")
    result = list(map(AddressRange, addresses, bases, firsts, counts))
    if any(r.base > r.first or r.first + r.count > SEQUENCE_MAX for r in result):
        raise BatchError("a range begins before its base or ends beyond 63 bits")
    return result, max(lengths)


def _entries(reader: ColumnReader, runs: int) -> int:
    """Return the entries of a dictionary: at most one for each run."""
    entries = reader.count()
    if entries > runs:
        raise BatchError(f"a dictionary of {entries} for {runs} runs")
    return entries
