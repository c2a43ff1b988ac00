"""Sparkplug data gets names from the last births and newer ones; late data reads all births. The result is the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import schemas
from spark.jobs import catalog, last_births
from spark.jobs.last_births import BIRTHS, LAST_BIRTHS, STEP
from spark.jobs.readings import JOB
from spark.jobs.stream import StreamStep
from spark.lake import SparkLake
from spark.transforms import births
from tests.spark import lakes
from tests.spark.decoding.test_sparkplug import metric
from tests.spark.lakes import START, Row
from tests.spark.test_jobs import table
from tests.spark.test_replay import born, sparkplug
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEED = 20_261_130
DATA = metric(None, (13, 1.0), alias=1)
YEAR_S = 365 * 24 * 3600


def take(lake: SparkLake, *messages: Row) -> None:
    """Run the step that reads messages, without the one that retries rejects."""
    lakes.write(lake.place, "telemetry", messages)
    step = catalog.select(["readings"])[0].steps[0]
    assert isinstance(step, StreamStep)
    step.run(lake)


def is_born(lake: SparkLake, *seconds: int, **override: Any) -> None:
    """Land births, each in its own commit."""
    for second in seconds:
        take(lake, sparkplug(second, "NBIRTH", second, born(f"m{second}", 1), **override))


@pytest.fixture(scope="module")
def twice_born(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkLake:
    """Lake with births of seconds 1 and 3, of which the second is the last; copied by `born_lake`."""
    lake = SparkLake(spark, tmp_path_factory.mktemp("born") / "lake")
    is_born(lake, 1, 3)
    STEP.run(lake)
    return lake


@pytest.fixture
def born_lake(twice_born: SparkLake, tmp_path: Path) -> SparkLake:
    """Lake with births of seconds 1 and 3."""
    return SparkLake(twice_born.session, shutil.copytree(twice_born.place.uri, tmp_path / "lake"))


def named(lake: SparkLake) -> dict[int, str]:
    """Return the names of data by sequence."""
    found = table(lake, "readings", "sequence", "metric", "address")
    return {sequence: name for sequence, name, address in found if "NDATA" in address}


def last_of(rows: list[Row]) -> set[tuple[Any, ...]]:
    """Find the last births in plain Python, from the last plausible one on."""
    subjects: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        subjects.setdefault((row["tenant"], row["gateway"], row["device"]), []).append(row)
    found: set[tuple[Any, ...]] = set()
    for of_it in subjects.values():
        believed = [row["received_at"] for row in of_it if row["received_at"] <= row["ingested_at"]]
        since: datetime = max(believed or [row["received_at"] for row in of_it])
        found |= {key(row) for row in of_it if row["received_at"] >= since}
    return found


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("tenant", "gateway", "device", "metric", "alias"))


def test_the_last_births_are_those_that_plain_python_finds(frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    messages = [
        sparkplug(number, "NBIRTH", randoms.choice((randoms.randrange(6), YEAR_S)), ingested_at=START.replace(hour=12))
        | {
            "gateway": f"gw{randoms.randrange(3)}",
            "device": f"d{randoms.randrange(3)}",
            "metric": randoms.choice(("speed", "load", "T")),
            "alias": randoms.choice((None, 1, 2**63 - 1)),
        }
        for number in range(80)
    ]
    last = births.last_births(frame(BIRTHS, *messages))
    assert last.schema.names == schemas.SPARKPLUG_LAST_BIRTHS.columns.names
    assert {key(row.asDict()) for row in last.collect()} == last_of(messages)


def test_data_that_came_late_has_all_read(born_lake: SparkLake, frame: Make) -> None:
    lake = born_lake
    is_born(lake, 5)
    for second, count in ((6, 4), (2, 6)):  # one metric for each birth, and `online`
        known = last_births.read_births(
            lake, frame("telemetry", sparkplug(0, "NDATA", second, DATA)), lake.version(BIRTHS)
        )
        assert known.count() == count
    take(lake, *(sparkplug(sequence, "NDATA", second, DATA) for sequence, second in enumerate((6, 2, 4))))
    assert named(lake) == {0: "m5", 1: "m1", 2: "m3"}


def test_a_clock_that_was_ahead_once_has_not_all_read_for_good(born_lake: SparkLake, frame: Make) -> None:
    lake = born_lake
    take(lake, sparkplug(9, "NBIRTH", 12 * YEAR_S, born("far", 1), ingested_at=START))
    STEP.run(lake)
    for second, count in ((4, 4), (12 * YEAR_S + 1, 4), (2, 6)):
        known = last_births.read_births(
            lake, frame("telemetry", sparkplug(0, "NDATA", second, DATA)), lake.version(BIRTHS)
        )
        assert known.count() == count
    take(lake, sparkplug(0, "NDATA", 4, DATA), sparkplug(1, "NDATA", 12 * YEAR_S + 1, DATA, ingested_at=START))
    assert named(lake) == {0: "m3", 1: "far"}


def _anew(lake: SparkLake) -> None:
    lake.recreate(LAST_BIRTHS)


def _births_anew(lake: SparkLake) -> None:
    lake.recreate(BIRTHS)
    is_born(lake, 3)


def _of_another(lake: SparkLake) -> None:
    """Simulate a run of another program version."""
    nothing = {LAST_BIRTHS: lake.read(LAST_BIRTHS).limit(0)}
    replace(STEP, revision=99, frames=lambda _: nothing).run(lake)


@pytest.mark.parametrize(
    "disturb", [_births_anew, *(pytest.param(each, marks=pytest.mark.slow) for each in (_anew, _of_another))]
)
def test_where_last_births_are_no_help_all_are_read(born_lake: SparkLake, disturb: Callable[[SparkLake], None]) -> None:
    lake = born_lake
    disturb(lake)
    take(lake, sparkplug(0, "NDATA", 4, DATA))
    assert named(lake) == {0: "m3"}
    is_born(lake, 5, gateway="gw2")
    STEP.run(lake)
    found = table(lake, LAST_BIRTHS, "gateway", "metric")
    assert [row for row in found if row[1] != "online"] == [("gw1", "m3"), ("gw2", "m5")]


def test_a_pass_keeps_them_up_to_date(lake: SparkLake) -> None:
    lakes.write(lake.place, "telemetry", [sparkplug(0, "NBIRTH", 4, born("speed", 1), born("load", 2))])
    JOB.run(lake)
    assert table(lake, LAST_BIRTHS, "metric", "alias", "unit") == [
        ("load", 2, "rpm"),
        ("online", None, None),
        ("speed", 1, "rpm"),
    ]
