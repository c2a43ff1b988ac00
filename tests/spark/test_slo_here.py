"""Delivery times found in this process: the same as Spark finds, of whatever messages and in however many batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
from spark.here import slo as here
from spark.jobs import runner
from spark.jobs import slo as job
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import slo
from tests.spark import lakes
from tests.spark.lakes import START, Row, clock_offset, message
from tests.spark.messages_here import by_key, columns, sent, take
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Make

SEED = 20_261_127
TABLE = "delivery_slo"
OF_1969 = datetime(1969, 12, 31, 23, 30, 0, tzinfo=UTC)
known = partial(by_key, TABLE, sketch="times", shares=(0.0, 0.5, 0.95, 0.99, 1.0))


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    made = Lake(session, tmp_path / "lake", here=True)
    made.ensure(TABLE)
    return made


def found(rows: list[Row]) -> pa.Table:
    return here.with_days(here.of_hours(columns(rows, here.MESSAGE)))


def there(lake: Lake) -> pa.Table:
    return lake.at(TABLE).delta().to_pyarrow_table()


def many(first: int, last: int) -> list[Row]:
    """Of some days; some of another month, and some that landed when the hub's own clock was wrong."""
    randoms = Random(chosen_seed(SEED) + first)
    rows = [sent(randoms, number) for number in range(first, last)]
    moved = [timedelta(0), timedelta(0), timedelta(0), timedelta(days=40), START - OF_1969, timedelta(seconds=7)]
    for row in rows:
        by = randoms.choice(moved)
        row |= {name: row[name] - by for name in ("received_at", "ingested_at") if row[name].year > 1971}
    return rows


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_same(frame: Make) -> None:
    rows = many(0, 1_500)
    theirs, ours = known(slo.slo(frame("telemetry", *rows)).toArrow()), known(found(rows))
    assert ours == theirs
    assert len({row["event_date"] for row in ours.values()}) > 10
    unknown = [row for row in ours.values() if row["times"] is None]
    assert unknown
    assert {(row["timed"], row["within_share"], row["p99_s"], row["max_s"]) for row in unknown} == {(0,) + (None,) * 3}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_folds_them_the_same_way(lake: Lake, frame: Make, table: Lake) -> None:
    """Some windows come again, some do not, and some without a time that can be believed, now or before."""
    batches = [many(first, first + 150) for first in range(0, 500, 100)]
    lake.ensure(TABLE)
    for version, rows in enumerate(batches):
        marker = Transaction("job", version)
        lake.fold(TABLE, slo.slo(frame("telemetry", *rows)), slo.FOLD, marker)
        assert table.fold_here(TABLE, found(rows), here.combined, marker)
    assert known(there(table)) == known(there(lake))
    assert known(there(table)) == known(found([row for rows in batches for row in rows]))


@pytest.mark.parametrize("rows_max", [100, here.ROWS_MAX])
def test_it_does_not_matter_in_which_parts_messages_come(rows_max: int) -> None:
    rows = [row | {"tenant": "default", "gateway": "g"} for row in many(0, 150)]
    made = [columns(rows[part::40], here.MESSAGE) for part in range(40)]
    hours = parts.summed(iter(made), here.of_hours, here.combined, rows_max)
    assert hours is not None
    assert known(here.with_days(hours)) == known(found(rows))
    assert parts.summed(iter(made), here.of_hours, here.combined, 3) is None


def test_of_many_messages_quantiles_are_within_what_a_sketch_promises() -> None:
    took = np.random.default_rng(chosen_seed(SEED)).permutation(20_000) * 0.005
    received = (START + timedelta(hours=n % 2) for n in range(20_000))
    rows = [
        message(0, at=at, ingested_at=at + timedelta(seconds=seconds))
        for at, seconds in zip(received, took, strict=True)
    ]
    assert len(found(rows)) == 3
    for row in found(rows).to_pylist():
        assert kll_doubles_sketch.deserialize(row["times"]).n == row["messages"]
        assert row["messages"] == (10_000 if row["width_s"] == 3_600 else 20_000)
        assert [row[name] for name in ("p50_s", "p95_s", "p99_s")] == pytest.approx([50, 95, 99], abs=0.03 * 100)
        assert row["within_share"] == pytest.approx(0.6, rel=0.02)


def test_of_no_messages_there_are_no_rows() -> None:
    assert found([]).schema.equals(schemas.DELIVERY_SLO.arrow)
    assert len(found([])) == 0


def test_one_machine_needs_no_session_for_it(table: Lake) -> None:
    rows = many(0, 50)
    lakes.write(table.place, "telemetry", rows)
    take(table, job.JOB, 1)
    take(table, job.JOB, 1)
    assert known(there(table)) == known(found(rows))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["a cluster", "too many hours", "gateways have told a lot"])
def test_what_is_left_to_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    lake = Lake(spark, tmp_path / "lake", here=why != "a cluster")
    rows = [message(n, gateway=f"g{n}") for n in range(4)]
    lakes.write(lake.place, "telemetry", rows)
    if why == "too many hours":
        monkeypatch.setattr(here, "ROWS_MAX", 3)
    else:
        monkeypatch.delattr(here, "of_hours")
    if why == "gateways have told a lot":
        lakes.write(lake.place, "clock_offsets", [clock_offset()])
        monkeypatch.setattr(clocks, "ROWS_MAX", 0)
    (step,) = runner.one_pass(lake, [job.JOB], lambda _: None)
    monkeypatch.undo()
    assert (step.error, known(there(lake))) == (None, known(found(rows)))
