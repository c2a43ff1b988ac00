"""Splitting of large batches into parts that land one by one.

A batch stores names and properties once for many messages; rows repeat them. A landing takes as many parts as fit its
memory and time, some of every gateway. After a crash between two parts the repeated batch is trimmed to the missing
ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bridge.batch import AddressRange, Batch
from bridge.limits import HELD_MESSAGE_BYTES, HELD_RANGE_BYTES
from cloud.lake.limits import JSON_BYTES_A_BYTE, PART_BYTES_MAX, PART_ROWS_MAX, SLICE_BYTES_MAX
from cloud.lake.rows import ReceivedBatch

Ints = npt.NDArray[np.int64]


def parts_of(received: ReceivedBatch) -> list[ReceivedBatch]:
    """Split a batch into parts, in order; a small one stays whole.

    Each part has at most `PART_BYTES_MAX` or `SLICE_BYTES_MAX`, except for one larger message.
    """
    batch = received.batch
    is_sliced = batch.expanded > SLICE_BYTES_MAX and received.one_by_one
    bytes_max = SLICE_BYTES_MAX if is_sliced else PART_BYTES_MAX
    if batch.expanded <= bytes_max and len(batch) <= PART_ROWS_MAX:
        return [received]
    ends = _ends(batch)
    splitter = _BatchSplitter(batch, ends)
    parts = [splitter.part(start, stop) for start, stop in _bounds(ends, bytes_max)]
    return [
        ReceivedBatch(received.tenant, received.gateway, part, received.store_epoch, received.ends) for part in parts
    ]


def _bounds(ends: Sequence[int], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield the first message of each part, and the first after it."""
    start, count = 0, len(ends)
    while start < count:
        before = ends[start - 1] if start else 0
        fitting = bisect_right(ends, before + bytes_max, start, min(count, start + PART_ROWS_MAX))
        stop = max(fitting, start + 1)
        yield start, stop
        start = stop


def _ends(batch: Batch) -> list[int]:
    """Return the cumulative bytes of the messages as rows, with names and properties."""
    pairs = zip(batch.devices, batch.properties, strict=True)
    repeated = [len(device.encode()) + JSON_BYTES_A_BYTE * len(properties) for device, properties in pairs]
    sizes = np.repeat(np.array(repeated, dtype=np.int64), np.asarray(batch.run_lengths, dtype=np.int64))
    named = [len(each.address.encode()) + len(batch.epoch) for each in batch.ranges]
    sizes += np.repeat(np.array(named, dtype=np.int64), np.array([each.count for each in batch.ranges], dtype=np.int64))
    sizes += np.fromiter(map(len, batch.bodies), dtype=np.int64, count=len(batch.bodies))
    found: list[int] = np.cumsum(sizes).tolist()
    return found


class _BatchSplitter:
    """Makes parts of one batch, messages ``start <= i < stop`` each."""

    def __init__(self, batch: Batch, ends: Sequence[int]) -> None:
        self._batch = batch
        self._ends = ends
        self._range_ends: list[int] = np.cumsum([each.count for each in batch.ranges]).tolist()
        self._run_ends: list[int] = np.cumsum(np.asarray(batch.run_lengths, dtype=np.int64)).tolist()

    def part(self, start: int, stop: int) -> Batch:
        batch = self._batch
        ranges = [
            AddressRange(whole.address, whole.base, whole.first + offset, count)
            for index, offset, count in _within(self._range_ends, start, stop)
            for whole in (batch.ranges[index],)
        ]
        runs = list(_within(self._run_ends, start, stop))
        first, behind = runs[0][0], runs[-1][0] + 1
        bodies = batch.bodies[start:stop]
        size = sum(map(len, bodies)) + HELD_MESSAGE_BYTES * len(bodies) + HELD_RANGE_BYTES * len(ranges)
        return Batch(
            batch.space,
            batch.epoch,
            batch.lane,
            ranges,
            [count for _, _, count in runs],
            batch.devices[first:behind],
            batch.received_at[first:behind],
            batch.flags[first:behind],
            batch.properties[first:behind],
            bodies,
            size,
            self._ends[stop - 1] - (self._ends[start - 1] if start else 0),
        )


def _within(ends: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces (that end at `ends`) between `start` and `stop`: index, offset in the piece, and length."""
    for index in range(bisect_right(ends, start), bisect_left(ends, stop) + 1):
        begin = ends[index - 1] if index else 0
        first = max(start, begin)
        yield index, first - begin, min(stop, ends[index]) - first
