"""What consumer groups lose when messages go: what they are owed and have not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import Loss


class Claim(NamedTuple):
    """What a consumer group may still ask of a log."""

    name: str
    """Of its cursor."""
    progress: CursorProgress
    """What it has acknowledged."""
    wants: Callable[[Run], bool] | None
    """What it is owed; None: everything."""


def losses_of(claims: Sequence[Claim], runs: Iterable[Stored], reason: str, now_ns: int) -> Iterator[Loss]:
    """What each of the groups loses when these runs go: what it is owed and has not acknowledged."""
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
