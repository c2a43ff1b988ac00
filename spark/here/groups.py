"""Rows in groups of equal keys, as columns: numpy sorts them once, and sums up each group where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]
_NUMBER_MAX: Final = 2**63 - 1
"""The largest of the whole numbers that a key is, and that it is sorted by."""


class Groups:
    """Rows by their key. `counts`: rows of each group; `first`: a row of each, as its number."""

    def __init__(self, key: Numbers) -> None:
        self._order = _order(key)
        ordered = key[self._order]
        self._starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(key)), bool), ordered[1:] != ordered[:-1])))
        self.counts = np.diff(self._starts, append=len(key))
        self.first = self._order[self._starts]

    def __len__(self) -> int:
        return len(self._starts)

    def of_rows(self) -> Numbers:
        """The number of each row's group."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = np.repeat(np.arange(len(self)), self.counts)
        return found

    def sum(self, column: Numbers) -> Numbers:
        """Of each group; of doubles it may be infinite, or none, as it is in Spark."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.add.reduceat(column[self._order], self._starts)

    def least(self, column: Numbers) -> Numbers:
        """Of each group."""
        return np.minimum.reduceat(column[self._order], self._starts)

    def greatest(self, column: Numbers) -> Numbers:
        """Of each group."""
        return np.maximum.reduceat(column[self._order], self._starts)

    def newest(self, *columns: Numbers) -> Numbers:
        """The number of each group's row that is the last one by these columns, the first of which counts most."""
        rows: Numbers = self._order
        group, starts = np.repeat(np.arange(len(self)), self.counts), self._starts
        for column in columns[:-1]:
            values = column[rows]
            is_highest = values == np.maximum.reduceat(values, starts)[group]
            rows, group = rows[is_highest], group[is_highest]
            if len(rows) == len(self):
                return rows
            starts = np.searchsorted(group, np.arange(len(self)))
        rows = rows[np.lexsort((columns[-1][rows], group))]  # in each group the highest is the last one
        found: Numbers = rows[np.append(starts[1:], len(rows)) - 1]
        return found

    def each(self) -> list[Numbers]:
        """The numbers of the rows of each group, rising."""
        return np.split(self._order, self._starts)[1:]

    def several(self) -> tuple[Numbers, list[Numbers]]:
        """The groups of more than one row, and the numbers of the rows of each."""
        several = np.flatnonzero(self.counts > 1)
        ends = self._starts[several] + self.counts[several]
        return several, [self._order[start:end] for start, end in zip(self._starts[several], ends, strict=True)]

    def ascending(self, column: Numbers) -> tuple[Numbers, Numbers]:
        """The values of all groups, one group after the other, each in rising order; where each group begins."""
        values = column[self._order]
        for count in np.unique(self.counts):
            if count > 1:  # groups of one size are the rows of a matrix
                places = self._starts[self.counts == count][:, None] + np.arange(count)
                values[places] = np.sort(values[places], axis=1)
        return values, self._starts


def _order(key: Numbers) -> Numbers:
    """Row numbers in the order of their keys, which are 0 or more."""
    bits = len(key).bit_length()
    if len(key) and int(key.max()) > _NUMBER_MAX >> bits:
        return np.argsort(key, kind="stable")
    # A fifth of the time of argsort: rows come in runs of rising keys, which this kind of sort merges.
    packed = np.sort(key << bits | np.arange(len(key)), kind="stable")
    order: Numbers = packed & ((1 << bits) - 1)
    return order


def key(rows: pa.Table, names: Sequence[str], *numbers: Numbers) -> Numbers:
    """A whole number for each row, equal where these columns of texts and these numbers are.

    Of rows with the same texts it rises with the numbers, the first of which counts most.
    """
    texts = (_codes(rows[name]) for name in names)
    columns = [column for column in (*texts, *map(_from_zero, numbers)) if column.bound > 1]
    return reduce(_both, columns, _Whole(np.zeros(rows.num_rows, np.int64), 1)).numbers


def alike(
    one: pa.Table, other: pa.Table, names: Sequence[str], *of: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers]:
    """Whole numbers for the rows of both, equal where these columns of texts are, and these numbers of both."""
    columns = {name: pa.chunked_array([dictionary(rows[name]) for rows in (one, other)]) for name in names}
    found = key(pa.table(columns), names, *map(np.concatenate, of))
    return found[: len(one)], found[len(one) :]


class _Whole(NamedTuple):
    """Whole numbers from 0 on, all of them below `bound`."""

    numbers: Numbers
    bound: int


def _both(one: _Whole, other: _Whole) -> _Whole:
    if one.bound * other.bound > _NUMBER_MAX:  # numbered anew there are no more of either than rows
        one, other = _numbered(one), _numbered(other)
    return _Whole(one.numbers * other.bound + other.numbers, one.bound * other.bound)


def _codes(column: pa.ChunkedArray) -> _Whole:
    """Texts, numbered."""
    one = dictionary(column)
    return _Whole(one.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(1, len(one.dictionary)))


def dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of texts, each of which is there once."""
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    one = encoded.unify_dictionaries().combine_chunks()
    return one.chunk(0) if isinstance(one, pa.ChunkedArray) else one  # of no rows, by some releases


def numbers(column: pa.ChunkedArray) -> Numbers:
    """A column of numbers, of true and false, or of times (microseconds since 1970 UTC); there are no nulls in it."""
    found: Numbers = _without_times(column).to_numpy()
    return found


def numbers_or(column: pa.ChunkedArray | pa.Array, instead: float) -> Numbers:
    """The same of one with nulls, in place of which this number stands."""
    found: Numbers = pc.fill_null(_without_times(column), instead).to_numpy()
    return found


def _without_times(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    is_time = pa.types.is_timestamp(column.type)
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()) if is_time else column


def _from_zero(column: Numbers) -> _Whole:
    if not len(column):
        return _Whole(column, 1)
    least = column.min()
    return _Whole(column - least, int(column.max()) - int(least) + 1)


def _numbered(column: _Whole) -> _Whole:
    unique, found = np.unique(column.numbers, return_inverse=True)
    return _Whole(found, len(unique))
