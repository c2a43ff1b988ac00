"""What a landing is cut into: everything once, in order, and no part larger than the rows of one may be."""

from __future__ import annotations

import pytest

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.lake import parts
from cloud.lake.landing import plan
from cloud.lake.parts import in_parts
from cloud.lake.rows import ReceivedBatch, telemetry
from cloud.lake.sequences import SequenceSet

EPOCH = "e" * 32


def received(*stored: Stored) -> ReceivedBatch:
    return ReceivedBatch("default", "gw", decode(encode(stored, space="s", epoch=EPOCH)))


def several() -> list[ReceivedBatch]:
    long = Stored(-1, 5, Run("plant/" + "x" * 90, "dev", 1, b"\x26\0\1a\0\1b", [b"12345"] * 20, 1))
    mixed = Stored(-1, 0, Run("b", "other", 1, b"", [b"x" * size for size in (0, 1000, 3, 700)], 1))
    return [received(long, mixed), received(Stored(-1, 100, Run("c", "d", 1, b"", [b"last"], 1)))]


@pytest.mark.parametrize("bytes_max", [1, 200, 400, 1_500, 10_000])
@pytest.mark.parametrize("rows_max", [1, 3, 1_000])
def test_everything_once_and_in_order(monkeypatch: pytest.MonkeyPatch, bytes_max: int, rows_max: int) -> None:
    new = plan(several(), lambda _stream: SequenceSet())
    [whole] = in_parts(new.slices, new.ranges)
    monkeypatch.setattr(parts, "LANDING_BYTES_MAX", bytes_max)
    monkeypatch.setattr(parts, "LANDING_ROWS_MAX", rows_max)
    cut = list(in_parts(new.slices, new.ranges))
    rows = [row for part in cut for row in telemetry(part.slices, 1).to_pylist()]
    assert rows == telemetry(whole.slices, 1).to_pylist()
    for part in cut:
        counts = [one.stop - one.start for one in part.slices]
        assert counts == [sequences.last - sequences.first + 1 for sequences in part.ranges]
        assert [one.sequence for one in part.slices] == [sequences.first for sequences in part.ranges]
        size = sum(len(row["body"]) + len(row["address"]) for row in telemetry(part.slices, 1).to_pylist())
        assert sum(counts) <= rows_max
        assert size <= bytes_max or sum(counts) == 1


def test_nothing_new_is_no_part() -> None:
    assert list(in_parts([], [])) == []
