"""Readings judged in this process: the same as Spark's workers judge, whatever they are and in however many passes."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import schemas
from spark.detector.detector import Detector
from spark.detector.state import loads
from spark.here import anomalies as here
from spark.transforms import anomalies
from tests.spark.lakes import START, Row, message
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEED = 20_261_127
STEP = timedelta(minutes=1)
METRICS = ("t", "seq", "ts", "net.boot")


def reading(randoms: random.Random, number: int) -> Row:
    # Each its own: of two at the same time either may be the newest.
    at = START + (number - randoms.choice((0, 0, 0, 0, 700))) * STEP + timedelta(microseconds=number)
    value = randoms.choice((randoms.gauss(20, 1), randoms.gauss(20, 1), 20.0, 90.0 if number % 97 == 0 else 21.0))
    row = message(number % 5, at=at, ingested_at=at + timedelta(seconds=2))
    row |= {
        "metric": randoms.choice(METRICS),
        "value": randoms.choice((None, value, value, value)),
        "suspect": randoms.random() < 0.1,
        "time_source": "device",
        "event_time": at,
        "device": randoms.choice(("d", "e")),
        "address": randoms.choice(("a", "a", "a", "b")),
    }
    if row["metric"] == "seq":
        row["value"] = (at - START) / STEP
    return row | {"event_date": at.date()}


def arrow(rows: list[Row]) -> pa.Table:
    kept = [{name: row[name] for name in here.READING} for row in rows]
    return pa.Table.from_pylist(kept, pa.schema([schemas.READINGS.arrow.field(name) for name in here.READING]))


def test_spark_judges_the_same(frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    ours = schemas.DETECTOR_STATES.arrow.empty_table()
    theirs: list[Row] = []
    found_here: list[Row] = []
    found_there: list[Row] = []
    for first in (0, 1_500, 2_500):
        rows = [reading(randoms, number) for number in range(first, first + 2_000)]
        found, states = here.Readings(here.to_judge(arrow(rows))).judged([ours.slice(0, 3), ours.slice(3)])
        judged = anomalies.judged(frame("readings", *rows), frame("detector_states", *theirs), 2)
        found_here += found.to_pylist()
        found_there += anomalies.anomalies(judged).toArrow().to_pylist()
        ours = here.combined(pa.concat_tables([ours, states])).cast(ours.schema)
        theirs = folded(theirs, anomalies.states(judged).toArrow().to_pylist())
    assert by_series(ours.to_pylist()) == by_series(theirs)
    assert sorted(found_here, key=repr) == sorted(found_there, key=repr)
    assert found_here
    assert sum(row["late"] for row in theirs) > 50
    assert {row["metric"] for row in theirs if row["judged"] == 0} == {"seq"}, "which only number messages"


def folded(old: list[Row], new: list[Row]) -> list[Row]:
    """As `anomalies.FOLD` has it."""
    known = by_series(old)
    for key, row in by_series(new).items():
        before = known.get(key, row | {"judged": 0, "late": 0})
        known[key] = row | {
            "last_at": max(before["last_at"], row["last_at"]),
            "judged": before["judged"] + row["judged"],
            "late": before["late"] + row["late"],
        }
    return list(known.values())


def by_series(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    known = {tuple(row[name] for name in here.SERIES): row for row in rows}
    assert len(known) == len(rows)
    return known


def test_of_no_readings_there_is_nothing_to_say() -> None:
    found, states = here.Readings(here.to_judge(arrow([]))).judged([])
    assert found.schema.equals(schemas.ANOMALIES.arrow)
    assert states.schema.equals(schemas.DETECTOR_STATES.arrow)
    assert (len(found), len(states)) == (0, 0)


def test_a_state_of_another_version_is_begun_anew_after_its_last_value() -> None:
    rows = [
        reading(random.Random(1), 0)
        | {"value": 1.0, "suspect": False, "metric": "t", "event_time": START + after * STEP}
        for after in range(-1, 2)
    ]
    name = {name: rows[0][name] for name in here.SERIES}
    old = name | {"state": b"of another version", "last_at": START, "judged": 7, "late": 1}
    states = pa.Table.from_pylist([old], schemas.DETECTOR_STATES.arrow)
    _, after = here.Readings(here.to_judge(arrow(rows))).judged([states])
    (row,) = after.to_pylist()
    assert (row["judged"], row["late"], row["last_at"]) == (2, 1, START + STEP)
    assert isinstance(loads(row["state"]), Detector)
