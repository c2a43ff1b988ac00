"""Windows equal those of plain Python for any readings in any number of batches."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from spark import schemas
from spark.lake import SparkLake
from spark.sink import BatchTransaction, Sink
from spark.transforms import rollups
from tests.spark.lakes import START
from tests.spark.windows import BEFORE_1970, SERIES, Row, plain, reading
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEED = 20_261_128
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def found(windows: DataFrame) -> dict[tuple[Any, ...], Row]:
    rows = windows.drop("sketch").toArrow().to_pylist()
    known = {tuple(row[name] for name in (*SERIES, "window_start")): row for row in rows}
    assert len(known) == len(rows)
    return known


def expected(rows: Sequence[Row], width: timedelta) -> dict[tuple[Any, ...], Row]:
    """Compute the windows; days and hours have no hour partition."""
    windows = plain(rows, width)
    return windows if width == MINUTE else {key: _without_hour(row) for key, row in windows.items()}


def _without_hour(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "event_hour"}


def mixed(randoms: random.Random, count: int, repeated: Sequence[int] = ()) -> list[Row]:
    """Build readings of some series: out of order, equal times, texts in between, clocks of 1969, sums that cancel out.

    `repeated`: sequences that some readings share.
    """
    return [
        reading(
            randoms.choice((number, number, *repeated)),
            START + timedelta(milliseconds=randoms.choice((0, 59_999, randoms.randrange(7_200_000))))
            if randoms.random() < 0.9
            else BEFORE_1970 - timedelta(seconds=randoms.randrange(3)),
            randoms.choice((None, float(randoms.randrange(-3, 4)), randoms.uniform(-1e9, 1e9))),
            suspect=randoms.random() < 0.5,
            device=randoms.choice(("d", "e", "Gerät", "")),
            metric=randoms.choice(("m", "n")),
            unit=randoms.choice((None, "Cel", "K")),
        )
        for number in range(count)
    ]


def readings(frame: Make, rows: Sequence[Row]) -> DataFrame:
    others = {"received_at": START, "clock_quality": "good", "time_source": "device", "lane": "live"}
    return frame("readings", *(row | others | {"event_date": row["event_time"].date()} for row in rows))


def test_windows_are_what_plain_python_finds(frame: Make) -> None:
    rows = mixed(random.Random(chosen_seed(SEED)), 400, repeated=(3, 2**63 - 1))
    hours = rollups.by_hour(readings(frame, rows)).localCheckpoint()
    assert found(rollups.by_minute(readings(frame, rows))) == expected(rows, MINUTE)
    assert found(hours) == expected(rows, HOUR)
    assert found(rollups.by_day(hours)) == expected(rows, DAY)


def test_windows_folded_batch_by_batch_are_those_of_all_readings(lake: SparkLake, frame: Make) -> None:
    rows = mixed(random.Random(chosen_seed(SEED) + 1), 300)
    for name in ("rollup_1m", "rollup_1d"):
        lake.ensure(name)
    for number in range(3):
        batch = readings(frame, rows[number::3])
        days = rollups.by_day(rollups.by_hour(batch))
        sink = Sink(lake, BatchTransaction("windows", number), None)
        sink.fold("rollup_1m", rollups.by_minute(batch), rollups.FOLD)
        sink.fold("rollup_1d", days, rollups.FOLD)
    assert found(lake.read("rollup_1m")) == expected(rows, MINUTE)
    assert found(lake.read("rollup_1d")) == expected(rows, DAY)


def test_windows_of_many_values_are_within_what_a_sketch_promises(frame: Make) -> None:
    values = list(range(10_000))
    random.Random(chosen_seed(SEED)).shuffle(values)
    rows = [reading(n, START + timedelta(milliseconds=n), float(value)) for n, value in enumerate(values)]
    (row,) = rollups.by_day(rollups.by_hour(readings(frame, rows))).collect()
    assert (row["count"], row["min"], row["max"]) == (10_000, 0.0, 9_999.0)
    assert row["p50"] == pytest.approx(5_000, abs=0.03 * 10_000)
    assert row["p95"] == pytest.approx(9_500, abs=0.03 * 10_000)


def test_a_sum_that_no_double_is_is_infinite(frame: Make) -> None:
    rows = [reading(n, START, 1e308 * sign, device=f"{sign}") for n in range(3) for sign in (1, -1)]
    (one, other) = rollups.by_minute(readings(frame, rows)).orderBy("device").collect()
    assert (one["sum"], one["mean"], other["sum"], other["p95"]) == (-math.inf, -math.inf, math.inf, 1e308)


def test_every_column_of_a_window_is_folded() -> None:
    folded = {*schemas.ROLLUP_1D.columns.names} - {*schemas.ROLLUP_1D.keys, "event_date"}
    assert {*rollups.FOLD} == folded, "FOLD in spark/transforms/rollups.py has to name these columns"


def test_every_column_of_a_window_is_computed_in_plain_python() -> None:
    computed = expected([reading(0, START, 1.0)], MINUTE)
    (row,) = computed.values()
    names = {*schemas.ROLLUP_1M.columns.names} - {"sketch"}
    assert {*row} == names, "compute the column in _plain of tests/spark/windows.py"
