"""Islands found in this process: as plain Python finds them, and Spark, of whatever stretches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from spark.here.islands import islands
from spark.transforms.islands import joined
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_261_127
HIGHEST = 2**63 - 1
Stretch = tuple[int, int, int]
"""Group, first, last."""


def found(stretches: list[Stretch], reach: int) -> list[int]:
    group, first, last = (np.array(column, np.int64) for column in zip(*stretches, strict=True))
    numbers: list[int] = islands(group, first, last, reach).tolist()
    return numbers


def plain(stretches: list[Stretch], reach: int) -> list[set[int]]:
    """The rows of each island."""
    known: list[tuple[int, int, set[int]]] = []  # group, last, rows
    for row in sorted(range(len(stretches)), key=stretches.__getitem__):
        group, first, last = stretches[row]
        if known and known[-1][0] == group and first - reach <= known[-1][1]:
            before = known.pop()
            known.append((group, max(before[1], last), {*before[2], row}))
        else:
            known.append((group, last, {row}))
    return [rows for _, _, rows in known]


def rows_of(numbers: list[int]) -> list[set[int]]:
    return [{row for row, number in enumerate(numbers) if number == island} for island in sorted(set(numbers))]


edges = st.one_of(st.integers(-40, 40), st.integers(HIGHEST - 40, HIGHEST))
stretch = st.tuples(st.integers(-2, 2), edges, edges).map(lambda each: (each[0], *sorted(each[1:])))


@given(st.lists(stretch, min_size=1, max_size=30), st.integers(0, 12))
def test_as_plain_python_finds_them(stretches: list[Stretch], reach: int) -> None:
    numbers = found(stretches, reach)
    assert min(numbers) >= 0
    assert rows_of(numbers) == plain(stretches, reach)


def test_a_stretch_within_a_long_one_ends_nothing() -> None:
    assert found([(1, 0, 100), (1, 5, 6), (1, 90, 95), (1, 102, 103), (0, 0, 1)], 1) == [1, 1, 1, 2, 0]


def test_the_highest_sequence_there_is_joins_what_touches_it() -> None:
    assert found([(0, HIGHEST, HIGHEST), (0, 0, 0), (0, HIGHEST - 1, HIGHEST - 1)], 1) == [1, 0, 1]


def test_of_no_stretches_there_are_none() -> None:
    none = np.empty(0, np.int64)
    assert islands(none, none, none, 1).tolist() == []


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("reach", [0, 1, 25])
def test_spark_joins_the_same(spark: SparkSession, reach: int) -> None:
    randoms = random.Random(chosen_seed(SEED))
    stretches = []
    for _ in range(600):
        first = randoms.choice((randoms.randrange(6_000), HIGHEST - randoms.randrange(6_000)))
        length = randoms.choice((-30, 0, 3, 30))  # one that ends before it begins, too: the order decides what it is of
        stretches.append((randoms.randrange(4), first, min(first + length, HIGHEST)))
    rows = spark.createDataFrame(stretches, "group bigint, first bigint, last bigint")
    summed = (F.min("first").alias("first"), F.max("last").alias("last"), F.count(F.lit(1)).alias("rows"))
    theirs = sorted(map(tuple, joined(rows, ("group",), ("first", "last"), F.lit(reach), *summed).collect()))
    ours = []
    for members in rows_of(found(stretches, reach)):
        groups, firsts, lasts = zip(*(stretches[row] for row in members), strict=True)
        ours.append((groups[0], min(firsts), max(lasts), len(members)))
        assert len(set(groups)) == 1
    assert sorted(ours) == theirs
    assert len(ours) > 20
