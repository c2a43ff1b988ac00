"""Packs the messages of a group into rows of table ``segment``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridge.message import Stored
from edge.broker.store.group import CommitGroup
from edge.broker.store.limits import POSITION_BITS
from edge.broker.store.segment import SegmentRow, encode, split


def pack(group: CommitGroup, boot: int, bytes_max: int) -> Iterator[SegmentRow]:
    """Iterate over the segments of a group: one for each log, or more if it exceeds the size of a segment.

    Raises struct.error, OverflowError or UnicodeError when a message cannot be written.
    """
    for log, first, end in group.filled:
        yield encode(log << POSITION_BITS | first, boot, group.monotonic_ns, (), span=end - first)
    for log, runs in _by_log(group).items():
        if not runs:
            continue
        for part in [runs] if group.sizes[log] <= bytes_max else _chunks(runs, bytes_max):
            key = log << POSITION_BITS | part[0].position
            yield encode(key, boot, group.monotonic_ns, part, packed=log in group.packed)


def _by_log(group: CommitGroup) -> dict[int, list[Stored]]:
    """Return the appended runs by log. Usually there is only one log."""
    if len(group.ends) == 1:
        (log,) = group.ends
        return {log: [stored for _, stored in group.appended if stored.run.bodies]}
    by_log: dict[int, list[Stored]] = {log: [] for log in group.ends}
    for log, stored in group.appended:
        if stored.run.bodies:
            by_log[log].append(stored)
    return by_log


def _chunks(runs: Sequence[Stored], bytes_max: int) -> Iterator[list[Stored]]:
    """Split runs into pieces of at most `bytes_max` of bodies. A larger message is a piece of its own."""
    piece: list[Stored] = []
    size = 0
    for run in runs:
        for part in split(run, bytes_max):
            part_size = sum(map(len, part.run.bodies))
            if piece and size + part_size > bytes_max:
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += part_size
    yield piece
