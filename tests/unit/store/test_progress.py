"""Cursor positions and the ranges above them, against a set of integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.store.progress import CursorProgress, unpack

ACKNOWLEDGEMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=30)


@given(st.integers(0, 20), ACKNOWLEDGEMENTS)
@settings(max_examples=200, deadline=None)
def test_progress_equals_a_set(start: int, acknowledgements: list[tuple[int, int]]) -> None:
    progress, model = CursorProgress(start), set(range(start))
    for first, extra in acknowledgements:
        progress.add(first, first + extra)
        model |= set(range(first, first + extra + 1))
    position = next(p for p in range(200) if p not in model)
    assert progress.position == position
    assert {p for first, last in progress.above for p in range(first, last + 1)} == {p for p in model if p > position}
    assert progress.backlog(100) == 100 - len(model)
    again = CursorProgress(progress.position, progress.pack())
    assert (again.position, again.above) == (progress.position, progress.above)


def test_distant_ranges_take_eight_bytes() -> None:
    progress = CursorProgress(7)
    progress.add(9, 9)
    assert len(progress.pack()) == 1 + 2 * 4
    progress.add(2**40, 2**40 + 5)
    assert len(progress.pack()) == 1 + 4 * 8
    assert unpack(7, progress.pack()) == [(9, 9), (2**40, 2**40 + 5)]


@pytest.mark.parametrize("damaged", [b"X", b"I123", b"I" + bytes(8), b"Q" + bytes(8), b"I" + b"\5\0\0\0\1\0\0\0"])
def test_damaged_ranges_are_detected(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="ranges"):
        unpack(0, damaged)
