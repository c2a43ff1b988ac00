"""The anomaly job equals the detector on the same values, in any order and number of passes."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import deltalake
import numpy as np
import pytest

from spark.detector.detector import REPORTED, Detector
from spark.jobs.anomalies import JOB
from spark.lake import SparkLake
from tests.spark import gold
from tests.spark.lakes import START, message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = 500
SPIKE = 450
STEP = timedelta(minutes=5)


def value(i: int) -> float:
    """A sine with one spike."""
    return 90.0 if i == SPIKE else round(20 + 5 * math.sin(i / 46), 3)


def land(lake: SparkLake, begin: int, end: int, **override: Any) -> None:
    """Append readings `begin` to `end` as job `readings` does, ingested when they were received."""
    found = []
    for i in range(begin, end):
        at = START + i * STEP
        row = message(i, at=at) | {"time_source": "gateway", "suspect": False, "event_date": at.date()}
        found += [row | {"metric": name, "value": number} for name, number in (("t", value(i)), ("seq", i % 256))]
    lake.ensure("readings")
    data = gold.table("readings", [row | override for row in found])
    deltalake.write_deltalake(lake.path("readings"), data, mode="append", partition_by=["event_date"])


def rows(lake: SparkLake, name: str) -> list[dict[str, Any]]:
    """Read a table without Spark."""
    found: list[dict[str, Any]] = deltalake.DeltaTable(lake.path(name)).to_pyarrow_table().to_pylist()
    return found


def test_passes_find_what_the_detector_finds_and_late_values_are_counted(
    lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.jobs.anomalies.SERIES_MAX", 2)
    for begin, end, epoch in ((0, 300, "e1"), (300, COUNT, "e1"), (100, 110, "another")):
        land(lake, begin, end, epoch=epoch)
        JOB.run(lake)

    times_s = np.array([(START + i * STEP).timestamp() for i in range(COUNT)])
    findings = Detector().judge(times_s, np.array([value(i) for i in range(COUNT)]))
    expected = [(i, each.score, each.rule) for i, each in enumerate(findings) if each.score >= REPORTED]
    anomalies = rows(lake, "anomalies")
    assert {row["metric"] for row in anomalies} == {"t"}, "a counter that starts over is no anomaly"
    found = sorted((row["sequence"], row["score"], row["rule"]) for row in anomalies)
    assert SPIKE in [sequence for sequence, _, _ in found]
    assert found == expected
    states = {row["metric"]: row for row in rows(lake, "detector_states")}
    assert {metric: (row["judged"], row["late"]) for metric, row in states.items()} == {
        "t": (COUNT, 10),
        "seq": (0, 10),
    }
    assert {row["last_at"] for row in states.values()} == {START + (COUNT - 1) * STEP}
