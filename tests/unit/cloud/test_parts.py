"""Parts of a landing: each message once, in order, and no part above the row limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.lake import parts
from cloud.lake.landing import LandedSets, plan
from cloud.lake.parts import parts_of
from cloud.lake.rows import ReceivedBatch, telemetry_rows
from cloud.lake.sequences import SequenceSet

EPOCH = "e" * 32


def received(*stored: Stored) -> ReceivedBatch:
    return ReceivedBatch("default", "gw", decode(encode(stored, space="s", epoch=EPOCH)))


def several() -> list[ReceivedBatch]:
    long = Stored(-1, 5, Run("plant/" + "x" * 90, "dev", 1, b"\x26\0\1a\0\1b", [b"12345"] * 20, 1))
    mixed = Stored(-1, 0, Run("b", "other", 1, b"", [b"x" * size for size in (0, 1000, 3, 700)], 1))
    return [received(long, mixed), received(Stored(-1, 100, Run("c", "d", 1, b"", [b"last"], 1)))]


def rows_of(batches: Sequence[ReceivedBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = telemetry_rows(
        plan(batches, LandedSets(lambda _stream: SequenceSet())).slices, 1
    ).to_pylist()
    return rows


@pytest.mark.parametrize("bytes_max", [1, 200, 400, 1_500, 10_000])
@pytest.mark.parametrize("rows_max", [1, 3, 1_000])
def test_all_messages_land_once_in_order(monkeypatch: pytest.MonkeyPatch, bytes_max: int, rows_max: int) -> None:
    whole = rows_of(several())
    monkeypatch.setattr(parts, "PART_BYTES_MAX", bytes_max)
    monkeypatch.setattr(parts, "SLICE_BYTES_MAX", bytes_max)
    monkeypatch.setattr(parts, "PART_ROWS_MAX", rows_max)
    cut = [part for batch in several() for part in parts_of(batch)]
    assert rows_of(cut) == whole
    assert sum(len(part.batch) for part in cut) == len(whole)
    for part in cut:
        rows = rows_of([part])
        size = sum(len(row["body"]) + len(row["address"]) for row in rows)
        assert len(rows) == len(part.batch) <= rows_max
        assert size <= bytes_max or len(rows) == 1
        assert size <= part.batch.expanded
        assert part.batch.size > 0


def test_small_batch_is_a_single_part() -> None:
    for batch in several():
        assert parts_of(batch) == [batch]


def test_part_is_a_valid_batch() -> None:
    """A part can be stored in quarantine and read again."""
    for part in (part for batch in several() for part in parts_of(batch)):
        batch = part.batch
        again = decode(encode(batch.stored(), space=batch.space, epoch=batch.epoch, lane=batch.lane))
        assert again.bodies == batch.bodies
