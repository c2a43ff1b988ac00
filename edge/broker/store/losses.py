"""Losses of consumer groups: removed messages that they want and have not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import Loss


class Claim(NamedTuple):
    """Claim of a consumer group on the messages of a log."""

    name: str
    """Name of its cursor."""
    progress: CursorProgress
    """Positions that it has acknowledged."""
    wants: Callable[[Run], bool] | None
    """Filter; None: it wants everything."""


def losses_of(claims: Sequence[Claim], runs: Iterable[Stored], reason: str, now_ns: int) -> Iterator[Loss]:
    """Iterate over the losses of each group when these runs are removed."""
    for position, sequence, run in runs:
        last = position + len(run.bodies) - 1
        for name, progress, wants in claims:
            parts = progress.outside(position, last)
            if not parts or not (wants is None or wants(run)):
                continue
            for low, high in parts:
                size = sum(map(len, run.bodies[low - position : high - position + 1]))
                first = sequence + low - position
                yield Loss(name, run.address, first, first + high - low, high - low + 1, size, reason, now_ns)
