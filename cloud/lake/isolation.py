"""Isolation of batches that cannot land: found by bisection, so that the others land without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cloud.lake.faults import ContentError
from cloud.lake.landing import LandingResult
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import SequenceStream

FAILURES_MAX = 3
"""Failures of single batches, without any landed one, after which the fault is attributed to the hub and the rest is
not tried: each attempt costs a data file and two transactions."""


@dataclass(slots=True)
class Isolation:
    """Result by index of the batch; batches in neither map have landed."""

    landed: LandingResult = field(default_factory=LandingResult)
    failed: dict[int, Exception] = field(default_factory=dict)
    """Batches that failed alone."""
    held: dict[int, str] = field(default_factory=dict)
    """Batches that were not tried, or have a damaged stream; with the reason."""


def isolate(batches: Sequence[ReceivedBatch], land: Callable[[Sequence[ReceivedBatch]], LandingResult]) -> Isolation:
    """Land as many batches as possible, in order. A batch that follows a failed one of the same stream is held."""
    result = Isolation()
    blocked: dict[SequenceStream, Exception] = {}

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
                if not isinstance(error, ContentError):  # such a batch goes to quarantine and blocks nothing
                    blocked.update(dict.fromkeys(batches[free[0]].streams, error))
            else:
                attempt(free[: len(free) // 2])
                attempt(free[len(free) // 2 :])
            return
        result.landed = result.landed.plus(landed)
        result.held.update({free[at]: why for at, why in landed.held.items()})

    attempt(range(len(batches)))
    return result


def _block(received: ReceivedBatch, index: int, blocked: dict[SequenceStream, Exception], result: Isolation) -> bool:
    """Hold a batch with a blocked stream; then block all of its streams for later batches."""
    why = next((blocked[stream] for stream in received.streams if stream in blocked), None) if blocked else None
    if why is not None:
        result.held[index] = f"an earlier batch of the stream cannot land: {why}"
        blocked.update(dict.fromkeys(received.streams, why))
    return why is not None
