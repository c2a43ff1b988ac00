"""Columns of narrow numbers against lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.broker.model.narrow_numbers import NarrowNumbers

ROWS = 20


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 1 << 33) | st.integers((1 << 32) - 2, 1 << 32))))
def test_narrow_numbers_against_a_list(changes: list[tuple[int, int]]) -> None:
    column, model = NarrowNumbers(), [0] * ROWS
    column.extend(ROWS // 2)
    column.extend(ROWS - ROWS // 2)
    for row, number in changes:
        column[row] = model[row] = number
        assert column[row] == number
    assert list(column) == model
    assert len(column) == ROWS


def test_a_negative_number_and_one_that_was_wide() -> None:
    column = NarrowNumbers()
    column.extend(1)
    for number in (-1, 1 << 40, 7, (1 << 32) - 1, 0):
        column[0] = number
        assert column[0] == number
