"""Isolation: which of several batches cannot be landed, found by halving, so that the others land without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloud.lake.faults import ContentError
from cloud.lake.landing import Landed
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import Stream

FAILURES_MAX = 3
"""Batches that fail alone before one has landed: from then on the fault is taken for one of the hub as a whole, and the
rest is not tried (each try costs a data file and two transactions)."""


@dataclass(slots=True)
class Isolation:
    """Batches by index: those in neither map have landed."""

    landed: Landed = field(default_factory=Landed)
    failed: dict[int, Exception] = field(default_factory=dict)
    """Failed alone."""
    held: dict[int, str] = field(default_factory=dict)
    """Not tried, or a stream of it is damaged; and why."""


def isolate(batches: Sequence[ReceivedBatch], land: Callable[[Sequence[ReceivedBatch]], Landed]) -> Isolation:
    """Land as many batches as can be, in order. A batch behind one that failed, of the same stream, is held."""
    result = Isolation()
    blocked: dict[Stream, Exception] = {}

    def attempt(indices: Sequence[int]) -> None:
        free = [index for index in indices if not _block(batches[index], index, blocked, result)]
        if not free:
            return
        if len(result.failed) >= FAILURES_MAX and not result.landed.rows:
            why = str(next(reversed(result.failed.values())))
            result.held.update(dict.fromkeys(free, why))
            return
        try:
            landed = land([batches[index] for index in free])
        except Exception as error:
            if len(free) == 1:
                result.failed[free[0]] = error
                if not isinstance(error, ContentError):  # which is set aside for good, and blocks nothing
                    blocked.update(dict.fromkeys(batches[free[0]].streams, error))
            else:
                attempt(free[: len(free) // 2])
                attempt(free[len(free) // 2 :])
            return
        result.landed = result.landed.plus(landed)
        result.held.update({free[at]: why for at, why in landed.held.items()})

    attempt(range(len(batches)))
    return result


def _block(received: ReceivedBatch, index: int, blocked: dict[Stream, Exception], result: Isolation) -> bool:
    """Hold a batch when a stream of it is blocked; then all of its streams are, for those behind it."""
    why = next((blocked[stream] for stream in received.streams if stream in blocked), None) if blocked else None
    if why is not None:
        result.held[index] = f"behind a batch that cannot be landed: {why}"
        blocked.update(dict.fromkeys(received.streams, why))
    return why is not None
