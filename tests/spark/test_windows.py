"""Windows made in this process: the same as plain Python finds, and as Spark makes, of whatever readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from datasketches import kll_doubles_sketch  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from spark import schemas
from spark.here import groups, sketches
from spark.here.times import DAY_US, HOUR_US, MINUTE_US
from spark.here.windows import SERIES, combined, of_readings
from spark.transforms import rollups
from tests.spark.lakes import START
from tests.spark.windows import Row, arrow, plain, reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def found(windows: pa.Table, *without: str) -> dict[tuple[Any, ...], Row]:
    rows = windows.to_pylist()
    known = {tuple(row[name] for name in (*SERIES, "window_start")): row for row in rows}
    assert len(known) == len(rows)
    return {key: {name: row[name] for name in row if name not in without} for key, row in known.items()}


BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
moments = st.one_of(
    st.integers(0, 7_200_000).map(lambda ms: START + timedelta(milliseconds=ms)),
    st.integers(1, 700_000).map(lambda days: datetime(1, 1, 1, tzinfo=UTC) + timedelta(days, 86_399.999_999)),
    st.sampled_from([START, START + timedelta(seconds=59, microseconds=999_999), BEFORE_1970]),
)
readings = st.builds(
    reading,
    st.integers(0, 3) | st.just(2**63 - 1),
    moments,
    st.none() | st.integers(-3, 3).map(float) | st.floats(-1e9, 1e9),
    suspect=st.booleans(),
    device=st.sampled_from(["d", "e", "Gerät", ""]),
    metric=st.sampled_from(["m", "n"]),
)


@given(st.lists(readings, max_size=40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_windows_are_what_plain_python_finds_whatever_parts_they_are_made_of(rows: list[Row], parts: int) -> None:
    for width_us in (MINUTE_US, HOUR_US, DAY_US):
        truth = plain(rows, timedelta(microseconds=width_us))
        made = [of_readings(arrow(rows[part::parts]), width_us) for part in range(parts)]
        assert found(combined(pa.concat_tables(made), width_us), "sketch") == truth
        minutes = of_readings(arrow(rows), MINUTE_US)
        assert found(combined(minutes, width_us), "sketch") == truth


def test_windows_of_many_values_are_within_what_a_sketch_promises() -> None:
    randoms = np.random.default_rng(5)
    values = randoms.permutation(10_000).astype(float)
    rows = [reading(n, START + timedelta(milliseconds=n), value) for n, value in enumerate(values)]
    whole = of_readings(arrow(rows), HOUR_US).to_pylist()
    parts = [of_readings(arrow(rows[part::10]), HOUR_US) for part in range(10)]
    for (row,) in (whole, combined(pa.concat_tables(parts), HOUR_US).to_pylist()):
        assert (row["count"], row["min"], row["max"]) == (10_000, 0.0, 9_999.0)
        assert kll_doubles_sketch.deserialize(row["sketch"]).n == 10_000
        assert row["p50"] == pytest.approx(5_000, abs=0.03 * 10_000)
        assert row["p95"] == pytest.approx(9_500, abs=0.03 * 10_000)


@given(st.lists(st.sampled_from([1, 2, 3, 12, 199, 200, 201, 450]), min_size=1, max_size=12))
def test_a_sketch_is_the_library_s_own(counts: list[int]) -> None:
    values = np.random.default_rng(sum(counts)).normal(size=sum(counts))
    starts = np.cumsum(counts) - counts
    made = sketches.of(values, starts, np.array(counts)).to_pylist()
    for sketch, start, count in zip(made, starts, counts, strict=True):
        library = kll_doubles_sketch(sketches.SIZE)
        for value in values[start : start + count][::-1]:
            library.update(value)
        if count <= sketches.SIZE:
            assert sketch == library.serialize()
        assert kll_doubles_sketch.deserialize(sketch).n == count


def test_bytes_that_are_no_sketch_are_refused() -> None:
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        sketches.merged(pa.array([b"\x05\x01\x0f", b""], pa.binary()), [np.array([0, 1])])


@pytest.mark.parametrize("spread", [1, 2**40, 2**61])
def test_keys_too_large_for_one_number_are_numbered(spread: int) -> None:
    """Series times windows times rows exceed 63 bits: clocks may name any time, and series are as many as there are."""
    randoms = np.random.default_rng(3)
    texts = pa.table({name: pa.array(randoms.choice(list("abcdefgh"), 500)) for name in ("x", "y")})
    first, second = (randoms.integers(0, 3, 500) * spread for _ in range(2))
    numbered = groups.Groups(groups.key(texts, ("x", "y"), first, second))
    told = list(zip(*(texts[name].to_pylist() for name in ("x", "y")), first, second, strict=True))
    assert sorted(numbered.counts) == sorted(told.count(key) for key in set(told))
    assert {told[row] for row in numbered.first} == set(told)
    ones = numbered.sum(np.ones(500))
    assert ones.tolist() == numbered.counts.tolist()


def test_a_sum_that_no_double_is_is_infinite() -> None:
    rows = [reading(n, START, 1e308 * sign, device=f"{sign}") for n in range(3) for sign in (1, -1)]
    (one, other) = of_readings(arrow(rows), MINUTE_US).sort_by("device").to_pylist()
    assert (one["sum"], one["mean"], other["sum"], other["p95"]) == (-math.inf, -math.inf, math.inf, 1e308)


# --- beside Spark -----------------------------------------------------------------------------------------------------


def _frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    empty = dict.fromkeys(schemas.READINGS.columns.names)
    tuples = [tuple((empty | row | {"received_at": START, "lane": "live"}).values()) for row in rows]
    fields = schemas.READINGS.columns
    for field in fields.fields:
        field.nullable = True
    return spark.createDataFrame(tuples, fields)


def _mixed(first: int, last: int) -> list[Row]:
    """Of three devices, in and out of order, with equal times, texts between, a clock of 1969, a window of 300."""
    rows = []
    for n in range(first, last):
        value = None if n % 11 == 0 else n * 13 % 17 / 3
        rows.append(reading(n, START + timedelta(seconds=n * 37 % 500), value, device=f"d{n % 3}"))
    rows += [reading(n, BEFORE_1970 - timedelta(seconds=n), 1.5) for n in range(first, first + 5)]
    often = range(first, first + 300)
    return rows + [reading(n % 7, START, float(n % 5), metric="often", suspect=n % 2 == 0) for n in often]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_makes_the_same_windows(spark: SparkSession) -> None:
    rows = _mixed(0, 200)
    frame = _frame(spark, rows)
    for width_us, made in ((MINUTE_US, rollups.by_minute(frame)), (HOUR_US, rollups.by_hour(frame))):
        theirs, ours = found(made.toArrow(), "sketch"), found(of_readings(arrow(rows), width_us), "sketch")
        assert theirs.keys() == ours.keys()
        for key, window in theirs.items():
            exact = {name: value for name, value in ours[key].items() if name in window}
            assert {**window, "sum": 0, "mean": 0} == {**exact, "sum": 0, "mean": 0}
            assert (window["sum"], window["mean"]) == pytest.approx((exact["sum"], exact["mean"]))
