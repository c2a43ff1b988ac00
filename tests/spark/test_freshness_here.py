"""Freshness found in this process: the same as Spark finds, of whatever messages and in however many batches."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from datasketches import kll_doubles_sketch  # type: ignore[import-untyped]

from spark import schemas
from spark.here import clocks, parts
from spark.here import freshness as here
from spark.jobs import freshness as job
from spark.jobs import runner
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import freshness
from tests.spark import lakes
from tests.spark.lakes import START, Row, clock_offset, message
from tests.spark.messages_here import by_key, columns, sent, take
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Make

SEED = 20_261_127
TABLE = "gateway_freshness"
known = partial(by_key, TABLE, sketch="lags", shares=(0.0, 0.5, 0.95, 1.0))


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    made = Lake(session, tmp_path / "lake", here=True)
    made.ensure(TABLE)
    return made


def found(rows: list[Row]) -> pa.Table:
    return here.with_gateways(here.of_devices(columns(rows, here.MESSAGE)))


def there(lake: Lake) -> pa.Table:
    return lake.at(TABLE).delta().to_pyarrow_table()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_same(frame: Make) -> None:
    randoms = Random(chosen_seed(SEED))
    rows = [sent(randoms, number) for number in range(900)]
    rows += [row | {"gateway": "wrong", "event_time": START - timedelta(days=9_000)} for row in rows[:3]]
    theirs, ours = known(freshness.freshness(frame("telemetry", *rows)).toArrow()), known(found(rows))
    assert ours == theirs
    assert len(ours) > 8 * 5
    assert {row["lag_max_s"] for row in ours.values() if row["gateway"] == "wrong"} == {None}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_folds_them_the_same_way(lake: Lake, frame: Make, table: Lake) -> None:
    """Some gateways come again, some do not, and some without a time that can be believed, now or before."""
    randoms = Random(chosen_seed(SEED))
    batches = [[sent(randoms, number) for number in range(first, first + 40)] for first in range(0, 240, 40)]
    lake.ensure(TABLE)
    for version, rows in enumerate(batches):
        marker = Transaction("job", version)
        lake.fold(TABLE, freshness.freshness(frame("telemetry", *rows)), freshness.FOLD, marker)
        assert table.fold_here(TABLE, found(rows), here.combined, marker)
        assert known(there(table)) == known(there(lake))
    assert known(there(table)) == known(found([row for rows in batches for row in rows]))


@pytest.mark.parametrize("rows_max", [25, here.ROWS_MAX])
def test_it_does_not_matter_in_which_parts_messages_come(rows_max: int) -> None:
    randoms = Random(chosen_seed(SEED))
    rows = [sent(randoms, number) | {"tenant": "default", "gateway": "g"} for number in range(150)]
    made = [columns(rows[part::40], here.MESSAGE) for part in range(40)]
    devices = parts.summed(iter(made), here.of_devices, here.combined, rows_max)
    assert devices is not None
    assert known(here.with_gateways(devices)) == known(found(rows))
    assert parts.summed(iter(made), here.of_devices, here.combined, 3) is None


def test_of_many_messages_quantiles_are_within_what_a_sketch_promises() -> None:
    lags = np.random.default_rng(chosen_seed(SEED)).permutation(20_000) * 0.01
    rows = [
        message(0, at=START, ingested_at=START + timedelta(seconds=lag), device=f"d{n % 2}")
        for n, lag in enumerate(lags)
    ]
    for row in found(rows).to_pylist():
        assert kll_doubles_sketch.deserialize(row["lags"]).n == row["rows"] == (10_000 if row["device"] else 20_000)
        assert (row["lag_p50_s"], row["lag_p95_s"]) == pytest.approx((100, 190), abs=0.03 * 200)
        assert row["late_rows"] == pytest.approx(0.7 * row["rows"], rel=0.02)


def test_of_no_messages_there_are_no_rows() -> None:
    assert found([]).schema.equals(schemas.GATEWAY_FRESHNESS.arrow)
    assert len(found([])) == 0


def test_a_gateway_has_one_row_though_no_device_of_it_is_in_the_file_that_has_it(table: Lake) -> None:
    for version, device in enumerate(("d", "e")):
        more = [message(number, device=f"{device}{number}") for number in range(3 - version)]
        assert table.fold_here(TABLE, found(more), here.combined, Transaction("job", version))
    (gateway,) = [row for row in there(table).to_pylist() if row["device"] is None]
    assert (gateway["rows"], len(there(table))) == (5, 6)


def test_one_machine_needs_no_session_for_it(table: Lake) -> None:
    rows = [sent(Random(n), n) for n in range(50)]
    lakes.write(table.place, "telemetry", rows)
    take(table, job.JOB, 1)
    take(table, job.JOB, 1)
    assert known(there(table)) == known(found(rows))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["a cluster", "too many devices", "gateways have told a lot"])
def test_what_is_left_to_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    lake = Lake(spark, tmp_path / "lake", here=why != "a cluster")
    rows = [message(n, device=f"d{n}") for n in range(4)]
    lakes.write(lake.place, "telemetry", rows)
    if why == "too many devices":
        monkeypatch.setattr(here, "ROWS_MAX", 3)
    else:
        monkeypatch.delattr(here, "of_devices")
    if why == "gateways have told a lot":
        lakes.write(lake.place, "clock_offsets", [clock_offset()])
        monkeypatch.setattr(clocks, "ROWS_MAX", 0)
    (step,) = runner.one_pass(lake, [job.JOB], lambda _: None)
    monkeypatch.undo()
    assert (step.error, known(there(lake))) == (None, known(found(rows)))
