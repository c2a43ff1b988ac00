"""accepted = landed + dropped + waiting, over whole tables: the cases also hold for `waypost prove`."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from spark import schemas
from spark.jobs import gaps, messages, runner
from spark.lake import SparkLake
from spark.sink import Sink
from spark.transforms import completeness, outages, ranges
from tests.spark import lakes
from tests.spark.lakes import START, ledger, manifest, message
from tests.support.completeness_cases import GOLDEN, HOUR, Case, judge_with_spark
from tests.support.completeness_cases import START as BEGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def judged(frame: Make, cases: dict[str, Case]) -> DataFrame:
    """Give each case its own gateway."""
    telemetry, given_up, stated, statuses = list[Any](), list[Any](), list[Any](), list[Any]()
    for name, said in cases.items():
        of = {"gateway": name}
        telemetry += [message(n, **of) for low, high in said["landed"] for n in range(low, high + 1)]
        telemetry += [message(0, address="other", lane="backlog", **of)] if said["lanes"] else []
        given_up += [ledger(low, high, reason=reason, **of) for low, high, reason in said["ledger"]]
        for low, high, hours in said["stated"]:
            at = BEGIN + hours * HOUR
            stated.append(manifest(low, high, hour=BEGIN, until=at, ingested_at=at, **of))
        if said["waiting"] is not None:
            at = BEGIN + said["said"] * HOUR
            statuses += [lakes.status(at - timedelta(hours=9), 77, **of), lakes.status(at, said["waiting"], **of)]
            statuses.append(lakes.status(at + HOUR, None, **of))
    rows = frame("telemetry", *telemetry)
    backlog = completeness.backlog(frame("gateway_status", *statuses))
    waited = outages.outages(rows)
    there = ranges.landed_ranges(rows), ranges.merge_given_up(frame("ledger", *given_up)), frame("manifests", *stated)
    return (
        completeness.judge(*there, frame("settled_ranges"), backlog, waited)
        .where("address <> 'other'")
        .localCheckpoint()
    )


def test_golden_cases(frame: Make) -> None:
    cases = {name: said for name, (said, _) in GOLDEN.items()}
    found = judged(frame, cases)
    hourly = completeness.hourly(found)
    assert hourly.schema.names == schemas.COMPLETENESS_HOURLY.columns.names
    found_lines: dict[str, list[Any]] = {name: [] for name in cases}
    for row in hourly.orderBy("first_sequence").collect():
        counts = (row["first_sequence"], row["last_sequence"], row["accepted"], row["landed"])
        found_lines[row["gateway"]].append((*counts, json.loads(row["given_up"]), row["waiting"], row["unexplained"]))
    assert found_lines == {name: expected for name, (_, expected) in GOLDEN.items()}

    gaps: dict[str, list[Any]] = {name: [] for name in cases}
    for row in completeness.gaps(found).orderBy("first_sequence").collect():
        assert row["missing"] == row["last_sequence"] - row["first_sequence"] + 1
        assert row["explained"] == (row["reason"] is not None)
        gaps[row["gateway"]].append((row["first_sequence"], row["last_sequence"], row["reason"]))
    assert gaps == {name: [gap for line in judge_with_spark(said) for gap in line.gaps] for name, said in cases.items()}


def run(lake: SparkLake) -> str | None:
    """Run the jobs `gaps` and landed ranges; return the error, if any."""
    _, step = runner.run_pass(lake, [messages.JOB, gaps.JOB], lambda _: None)
    return step.error


def lines(lake: SparkLake) -> list[tuple[Any, ...]]:
    rows = lake.read("completeness_hourly").orderBy("first_sequence").collect()
    return [(row["first_sequence"], row["last_sequence"], row["landed"], row["settled"]) for row in rows]


def opened(lake: SparkLake) -> list[tuple[int, int]]:
    rows = lake.read("open_statements").orderBy("first_sequence").collect()
    return [(row["first_sequence"], row["last_sequence"]) for row in rows]


@pytest.mark.slow
def test_statements_are_judged_until_all_of_them_has_landed(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounts do not depend on order, repetition or crashes: they equal those of all statements at once."""
    landed, stated = [message(n) for n in range(15)], [manifest(0, 9), manifest(10, 19, hour=START + HOUR)]
    lakes.write(lake.place, "telemetry", landed)
    lakes.write(lake.place, "manifests", stated)
    lakes.write(lake.place, "gateway_status", [lakes.status(START + 9 * HOUR, 0)])
    assert run(lake) is None
    assert lines(lake) == [(0, 9, 10, True), (10, 19, 5, False)]
    assert opened(lake) == [(10, 19)]
    lakes.write(lake.place, "manifests", [manifest(0, 9), manifest(20, 29, hour=START + 2 * HOUR)])
    landed += [message(n) for n in range(15, 22)]
    lakes.write(lake.place, "telemetry", landed[15:])
    overwrite = Sink.overwrite

    def dies(self: Sink, name: str, *rest: Any, **named: Any) -> bool:
        if name == "open_statements":
            raise RuntimeError("power cut")
        return overwrite(self, name, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "overwrite", dies)
        assert "power cut" in (run(lake) or "")
    landed.append(message(31))
    lakes.write(lake.place, "telemetry", landed[-1:])
    assert run(lake) is None
    assert lines(lake) == [(0, 9, 10, True), (10, 19, 10, True), (20, 29, 2, False), (30, 31, 1, False)]
    assert opened(lake) == [(20, 29)]
    (sums,) = lake.read("completeness").select("accepted", "missing", "unexplained", "unstated", "rows").collect()
    assert tuple(sums) == (32, 9, 9, 2, 23)
    versions = {name: lake.state(name) for name in ("open_statements", "settled_ranges", "completeness_hourly")}
    assert run(lake) is None
    assert {name: lake.state(name) for name in versions} == versions
    shutil.rmtree(lake.path("landed_ranges"))  # statements that it settled are judged again
    assert run(lake) is None
    assert lines(lake) == [(0, 9, 10, True), (10, 19, 10, True), (20, 29, 2, False), (30, 31, 1, False)]
    assert {name: lake.state(name) for name in versions} != versions


@pytest.mark.slow
def test_a_statement_that_comes_while_others_are_settled_is_not_lost(
    lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pass appends a statement between this pass's read of the open ones and its write."""
    lakes.write(lake.place, "telemetry", [message(n) for n in range(10)])
    lakes.write(lake.place, "manifests", [manifest(0, 9), manifest(10, 19, hour=START + HOUR)])
    overwrite = Sink.overwrite

    def late(self: Sink, name: str, *rest: Any, **named: Any) -> bool:
        if name == "open_statements":
            monkeypatch.setattr(Sink, "overwrite", overwrite)
            lakes.write(lake.place, "manifests", [manifest(20, 29, hour=START + 2 * HOUR)])
            statements = next(step for step in gaps.JOB.steps if step.name == "open_statements")
            statements.run(SparkLake(lake.session.newSession(), lake.place))
        return overwrite(self, name, *rest, **named)

    monkeypatch.setattr(Sink, "overwrite", late)
    assert "another pass" in (run(lake) or "")
    assert opened(lake) == [(0, 9), (10, 19), (20, 29)]
    assert run(lake) is None
    assert lines(lake) == [(0, 9, 10, True), (10, 19, 0, False), (20, 29, 0, False)]


def test_an_address_in_all(frame: Make) -> None:
    telemetry = [message(n) for n in (*range(130), *range(140, 200), 150, 150)]
    hours = [manifest(0, 99), manifest(100, 149, hour=START + HOUR)]
    there = ranges.landed_ranges(frame("telemetry", *telemetry))
    given_up = ranges.merge_given_up(frame("ledger", ledger(128, 134), ledger(132, 135, reason="evicted")))
    backlog = completeness.backlog(frame("gateway_status", lakes.status(START + 99 * HOUR, 0)))
    waited = frame("outages")
    stated = frame("manifests", *hours), frame("settled_ranges")
    found = completeness.judge(there, given_up, *stated, backlog, waited).localCheckpoint()
    sums = completeness.completeness(found)
    assert sums.schema.names == schemas.COMPLETENESS.columns.names
    (row,) = sums.collect()
    assert row.asDict() == {
        "tenant": "default",
        "gateway": "gw1",
        "epoch": "e1",
        "address": "load/cpu",
        "first_sequence": 0,
        "last_sequence": 199,
        "rows": 192,
        "distinct_sequences": 190,
        "accepted": 200,
        "unstated": 50,
        "missing": 10,
        "explained": 6,
        "waiting": 0,
        "unexplained": 4,
        "duplicates": 2,
    }
