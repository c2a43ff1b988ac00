"""Parts of a landing: what is new of some batches, cut so that the rows of each part fit the memory they are made in.

A batch says names and properties once for many messages, and rows write them out. Most landings are one part; a batch
that expands to more than one landing may take is landed in several, each a commit of its own: what is sent again after
a crash between two of them is trimmed to what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bridge.batch import Batch
from cloud.lake.limits import JSON_BYTES_A_BYTE, LANDING_BYTES_MAX, LANDING_ROWS_MAX
from cloud.lake.rows import BatchSlice
from cloud.lake.sequences import SequenceRange

Ints = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Slices of batches, and the range of sequences each of them is."""

    slices: Sequence[BatchSlice]
    ranges: Sequence[SequenceRange]


def in_parts(slices: Sequence[BatchSlice], ranges: Sequence[SequenceRange]) -> Iterator[Part]:
    """In order, each with at least one message, and at most `LANDING_BYTES_MAX` when it has more."""
    batches = {id(one.received): one.received.batch for one in slices}
    rows = sum(one.stop - one.start for one in slices)
    if sum(batch.expanded for batch in batches.values()) <= LANDING_BYTES_MAX // 2 and rows <= LANDING_ROWS_MAX:
        if slices:
            yield Part(slices, ranges)
        return
    ends = {key: _ends(batch) for key, batch in batches.items()}
    taken: list[BatchSlice] = []
    named: list[SequenceRange] = []
    room, rows = LANDING_BYTES_MAX, LANDING_ROWS_MAX
    for whole, sequences in zip(slices, ranges, strict=True):
        rest, left = whole, sequences
        while rest.start < rest.stop:
            count, size = _fitting(rest, ends[id(rest.received)], room, rows)
            if not count and taken:
                yield Part(taken, named)
                taken, named, room, rows = [], [], LANDING_BYTES_MAX, LANDING_ROWS_MAX
                continue
            if not count:
                count, size = 1, room  # one message larger than a part is a part of its own
            taken.append(rest._replace(stop=rest.start + count))
            named.append(left._replace(last=left.first + count - 1))
            room, rows = room - size, rows - count
            rest = rest._replace(start=rest.start + count, sequence=rest.sequence + count)
            left = left._replace(first=left.first + count)
    if taken:
        yield Part(taken, named)


def _fitting(part: BatchSlice, ends: Ints, room: int, rows: int) -> tuple[int, int]:
    """How many messages of a slice, from its first on, take at most `room` bytes, and how many bytes they take."""
    names = len(part.address.encode()) + len(part.received.batch.epoch)
    stop = min(part.stop, part.start + rows)
    sizes = ends[part.start : stop + 1] - ends[part.start] + np.arange(stop + 1 - part.start) * names
    count = int(np.searchsorted(sizes, room, side="right")) - 1
    return count, int(sizes[count])


def _ends(batch: Batch) -> Ints:
    """Where the bytes of each message end that are written out beside its address: body, device and properties."""
    pairs = zip(batch.devices, batch.properties, strict=True)
    said = [len(device.encode()) + JSON_BYTES_A_BYTE * len(properties) for device, properties in pairs]
    sizes = np.repeat(np.array(said, dtype=np.int64), np.asarray(batch.run_lengths, dtype=np.int64))
    sizes += np.fromiter(map(len, batch.bodies), dtype=np.int64, count=len(batch.bodies))
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
