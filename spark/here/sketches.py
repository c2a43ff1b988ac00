"""KLL sketches of values: the same bytes that Spark's functions `kll_…_double` write and read.

Both are Apache DataSketches, whose form is one in all languages (KLL: Karnin, Lang, Liberty 2016). A sketch of up to
`SIZE` values is these values behind a fixed head: such ones, which most windows have, are written as columns. All
others are made by the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from datasketches import kll_doubles_sketch  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark.here.groups import Groups

SIZE: Final = 200
"""Of a sketch (`k`), as Spark has it unless told: ranks within 1.4 %, exact up to so many values."""
SHARES: Final = (0.5, 0.95)
"""The quantiles that windows have."""
_INCLUSIVE: Final = True
"""Of so many values at least this share is not above the quantile."""
_FAMILY, _LEVEL_SIZE, _ITS_ONLY_VALUE = 15, 8, 1 << 2
_ONE: Final = np.frombuffer(bytes((2, 2, _FAMILY, _ITS_ONLY_VALUE, SIZE, 0, _LEVEL_SIZE, 0)), "<i8")[0]
_SOME: Final = np.frombuffer(bytes((5, 1, _FAMILY, 0, SIZE, 0, _LEVEL_SIZE, 0)), "<i8")[0]
"""The first 8 bytes: size of the head in words of 4 bytes, version, family, flags, `k`, smallest level."""
_LEVELS: Final = SIZE | 1 << 16
"""`k` that its errors are of, and the number of levels."""


def of(values: NDArray[np.float64], starts: NDArray[Any], counts: NDArray[Any]) -> pa.Array:
    """A sketch (binary) of each of these runs of values, which are one value each at least."""
    large = np.flatnonzero(counts > SIZE)
    made = [_of(values[starts[run] : starts[run] + counts[run]]) for run in large]
    return replaced(_small(values, starts, np.where(counts > SIZE, 1, counts)), large, made)


def _of(values: NDArray[np.float64]) -> bytes:
    sketch = kll_doubles_sketch(SIZE)
    sketch.update(values)
    return bytes(sketch.serialize())


def _small(values: NDArray[np.float64], starts: NDArray[Any], counts: NDArray[Any]) -> pa.Array:
    """Sketches of up to `SIZE` values: 8 bytes and a value, or 24 bytes, the least, the greatest, and all values."""
    some = counts > 1
    words = np.where(some, 5 + counts, 2)  # of 8 bytes
    ends = np.cumsum(words)
    begins = ends - words
    sketches = np.empty(int(words.sum()), "<i8")
    sketches[begins] = np.where(some, _SOME, _ONE)
    sketches[begins[some] + 1] = counts[some]
    sketches[begins[some] + 2] = _LEVELS | (SIZE - counts[some]) << 32
    numbers = sketches.view("<f8")
    runs = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = values[starts[runs] + within]
    numbers[np.repeat(begins + np.where(some, 5, 1), counts) + within] = held
    if some.any():
        first = np.cumsum(counts) - counts
        numbers[begins[some] + 3] = np.minimum.reduceat(held, first)[some]
        numbers[begins[some] + 4] = np.maximum.reduceat(held, first)[some]
    offsets = np.concatenate(([0], 8 * ends)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), pa.py_buffer(sketches)])


def replaced(sketches: pa.Array, places: NDArray[Any], others: Sequence[bytes]) -> pa.Array:
    """The same with others at some places."""
    if not others:
        return sketches
    chosen = np.arange(len(sketches))
    chosen[places] = len(sketches) + np.arange(len(others))
    return pa.concat_arrays([sketches, pa.array(others, pa.binary())]).take(pa.array(chosen))


def quantiles_of(
    values: NDArray[np.float64],
    starts: NDArray[Any],
    counts: NDArray[Any],
    made: pa.Array,
    shares: Sequence[float] = SHARES,
) -> list[NDArray[np.float64]]:
    """For each of these shares the quantile of each run of values, which rise and are what the sketches `made` are of.

    Exact where the sketch is.
    """
    found = [values[starts + np.ceil(share * counts).astype(np.int64) - 1] for share in shares]
    for run in np.flatnonzero(counts > SIZE):
        for column, quantile in zip(found, quantiles(made[run].as_py(), shares), strict=True):
            column[run] = quantile
    return found


def combined(
    sketches: pa.Array, known: Sequence[NDArray[np.float64]], groups: Groups, shares: Sequence[float] = SHARES
) -> tuple[pa.Array, list[NDArray[np.float64]]]:
    """Of each group of sketches the one of all their values, and for each of these shares its quantile.

    `known`: the quantiles of the sketches as they are. Raises what `merged` raises.
    """
    several, rows = groups.several()
    made, theirs = merged(sketches, rows, shares)
    found = [column[groups.first] for column in known]
    for column, quantile in zip(found, zip(*theirs, strict=True), strict=False):  # of none there are none
        column[several] = quantile
    return replaced(sketches.take(pa.array(groups.first)), several, made), found


def merged(
    sketches: pa.Array, runs: Sequence[NDArray[Any]], shares: Sequence[float] = SHARES
) -> tuple[list[bytes], list[list[float]]]:
    """Of each run of these sketches, which are named by their numbers, the one of all their values, and its quantiles.

    Raises what the library raises for bytes that are no sketch.
    """
    if not runs:
        return [], []
    taken = iter(sketches.take(pa.array(np.concatenate(runs))).to_pylist())
    found = [_merged(list(islice(taken, len(run)))) for run in runs]
    return [bytes(sketch.serialize()) for sketch in found], [_quantiles(sketch, shares) for sketch in found]


def _merged(sketches: Sequence[bytes]) -> kll_doubles_sketch:
    one = kll_doubles_sketch.deserialize(sketches[0])
    for other in sketches[1:]:
        one.merge(kll_doubles_sketch.deserialize(other))
    return one


def quantiles(sketch: bytes, shares: Sequence[float] = SHARES) -> list[float]:
    """Those of these shares."""
    return _quantiles(kll_doubles_sketch.deserialize(sketch), shares)


def _quantiles(sketch: kll_doubles_sketch, shares: Sequence[float]) -> list[float]:
    return list(sketch.get_quantiles(shares, _INCLUSIVE))
