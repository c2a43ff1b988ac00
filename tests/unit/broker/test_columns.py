"""Columns against lists: narrow numbers, values of which few are different."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.broker.model.narrow_numbers import NarrowNumbers
from edge.broker.model.repeated_values import RepeatedValues

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


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.sampled_from(["", "a", "b", "c", "d"]))))
def test_repeated_values_against_a_list(changes: list[tuple[int, str]]) -> None:
    column, model = RepeatedValues(""), [""] * ROWS
    column.extend(ROWS)
    for row, value in changes:
        column[row] = model[row] = value
        assert list(column.rows(value)) == [row for row, its in enumerate(model) if its == value]
    assert list(column) == model
    assert not list(column.rows("e"))


def test_more_values_than_a_byte_and_two_can_tell() -> None:
    rows = 70_000
    column = RepeatedValues(-1)
    column.extend(rows)
    for number in range(rows):
        column[number] = number
    column.extend(1)
    assert [column[row] for row in (0, 255, 256, 65_535, 65_536, rows - 1, rows)] == [
        0, 255, 256, 65_535, 65_536, rows - 1, -1,
    ]  # fmt: skip


def test_values_nobody_has_take_no_numbers() -> None:
    column = RepeatedValues("")
    column.extend(1)
    for number in range(1_000):
        column[0] = str(number)
    assert column[0] == "999"
    assert len(column._values) <= 3
