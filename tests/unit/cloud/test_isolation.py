"""A landing takes as many batches as possible: later batches of every stream of a failed one wait."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.batch import AddressRange, Batch
from bridge.lane import BatchLane
from cloud.lake.isolation import isolate
from cloud.lake.landing import LandingResult
from cloud.lake.rows import ReceivedBatch


def batch(*ranges: tuple[str, int]) -> ReceivedBatch:
    """Return a batch of one message for each (address, sequence)."""
    return ReceivedBatch(
        "default",
        "gw",
        Batch(
            space="default",
            epoch="e",
            lane=BatchLane.LIVE,
            ranges=[AddressRange(address, 0, first, 1) for address, first in ranges],
            run_lengths=[1] * len(ranges),
            devices=["d"] * len(ranges),
            received_at=[1] * len(ranges),
            flags=[1] * len(ranges),
            properties=[b""] * len(ranges),
            bodies=[b"x"] * len(ranges),
            size=len(ranges),
            expanded=len(ranges),
        ),
    )


def test_batches_behind_a_waiting_one_wait() -> None:
    """The second batch shares a stream with the first, which fails, and the third one with the second only."""
    failing, behind, further = batch(("a", 0)), batch(("a", 1), ("b", 0)), batch(("b", 1))
    landed: list[ReceivedBatch] = []

    def land(part: Sequence[ReceivedBatch]) -> LandingResult:
        if failing in part:
            raise OSError("no space")
        landed.extend(part)
        return LandingResult(len(part))

    found = isolate([failing, behind, further], land)
    assert list(found.failed) == [0]
    assert list(found.held) == [1, 2]
    assert landed == []
