"""Jobs on lakes: streams equal plain Python, a second run changes nothing, late data corrects history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from spark.decoding import reasons
from spark.decoding.limits import BODY_BYTES_MAX, VALUES_MAX
from spark.jobs import catalog, runner
from spark.lake import SparkLake
from spark.report import queries
from spark.sink import Sink
from spark.transforms import readings, rollups
from spark.transforms.times import PLAUSIBLE_FROM
from tests.spark import lakes
from tests.spark.lakes import START, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TWO_HOURS_ON = START + timedelta(hours=2)
LATE_INGESTED = START + timedelta(hours=72)
"""Time at which the reading of a gateway that was offline lands."""


def table(lake: SparkLake, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Read a table's rows without Spark, in a fixed order."""
    found = deltalake.DeltaTable(lake.path(name)).to_pyarrow_table().to_pylist()
    keys = columns or tuple(found[0]) if found else ()
    return sorted((tuple(row[key] for key in keys) for row in found), key=repr)


def run(lake: SparkLake, *names: str) -> dict[str, Any]:
    steps = runner.run_pass(lake, catalog.select(names), lambda _: None)
    assert [step.error for step in steps] == [None] * len(steps)
    return {step.job: step for step in steps}


def land(lake: SparkLake, *rows: dict[str, Any]) -> None:
    lakes.write(lake.place.path, "telemetry", rows)


def reading(sequence: int, value: float, at: datetime, **override: Any) -> dict[str, Any]:
    return message(sequence, at=at, body=json.dumps({"t": value}).encode(), **override)


def plain_rollup(rows: list[dict[str, Any]]) -> dict[tuple[str, datetime], tuple[int, float, float, float]]:
    """Compute `rollup_1m` for messages `{"t": value}` in plain Python."""
    windows: dict[tuple[str, datetime], list[float]] = {}
    for row in rows:
        window = row["event_time"].replace(second=0, microsecond=0)
        windows.setdefault((row["device"], window), []).append(json.loads(row["body"])["t"])
    return {key: (len(values), min(values), max(values), sum(values)) for key, values in windows.items()}


def rollup(lake: SparkLake, name: str = "rollup_1m") -> dict[tuple[str, datetime], tuple[int, float, float, float]]:
    columns = ("device", "window_start", "count", "min", "max", "sum")
    return {(row[0], row[1]): row[2:] for row in table(lake, name, *columns)}


@dataclass(frozen=True, slots=True)
class RolledLake:
    """Lake with two passes of the rollups over `rows`, and the results of the passes."""

    lake: SparkLake
    rows: list[dict[str, Any]]
    passes: list[dict[str, Any]]


@pytest.fixture(scope="module")
def rolled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RolledLake:
    """Roll up three devices in several commits, one with a late reading, and one with a new day before 2020 each."""
    usual = [reading(n, n % 17 + 0.5, START + timedelta(seconds=7 * n), device=f"dev{n % 3}") for n in range(120)]
    in_time = [reading(200, 10.0, START, device="late"), reading(201, 20.0, TWO_HOURS_ON, device="late")]
    late = reading(202, 30.0, START + timedelta(seconds=5), device="late", lane="backlog", ingested_at=LATE_INGESTED)
    days = [datetime(1971, 1, 1, tzinfo=UTC) + timedelta(days=977 * n) for n in range(18)]
    assert days[-1] < PLAUSIBLE_FROM
    wrong = [
        reading(300 + n, n + 0.5, START, device="wrong") | {"event_time": at}
        for n, at in enumerate([*days, *days, START])
    ]
    lake = SparkLake(spark, tmp_path_factory.mktemp("rolled") / "lake")
    land(lake, *usual[:40])
    land(lake, *usual[40:70], *in_time, *wrong[:20])
    passes = [run(lake, "rollups", "hours")]
    land(lake, *usual[70:], late, *wrong[20:])
    passes.append(run(lake, "rollups", "hours"))
    return RolledLake(lake, [*usual, *in_time, late, *wrong], passes)


def test_several_commits_and_passes_equal_plain_python(rolled: RolledLake) -> None:
    lake, (first, second) = rolled.lake, rolled.passes
    assert first["readings"].rows_in == 92
    assert (second["readings"].rows_in, second["readings"].rows_out) == (68, 68)
    assert rollup(lake) == plain_rollup(rolled.rows)
    hours = rollup(lake, "rollup_1h")
    assert sum(row[0] for row in hours.values()) == len(rolled.rows)

    batch = {
        (row["device"], row["window_start"].astimezone(UTC)): (row["count"], row["min"], row["max"], row["sum"])
        for row in rollups.by_minute(lake.read("readings")).collect()
    }
    assert batch == rollup(lake)

    # Without new messages the jobs read and write nothing.
    versions = {name: lake.state(name) for name in ("readings", "rollup_1m", "rollup_1h")}
    third = run(lake, "rollups", "hours")
    assert all((step.rows_in, step.rows_out) == (0, 0) for step in third.values())
    assert {name: lake.state(name) for name in versions} == versions


def test_late_data_corrects_history_and_leaves_other_hours_alone(rolled: RolledLake) -> None:
    columns = ("device", "window_start", "count", "mean", "revised_at")
    rows = {row[1]: row[2:] for row in table(rolled.lake, "rollup_1m", *columns) if row[0] == "late"}
    assert rows == {
        START: (2, 20.0, LATE_INGESTED),
        TWO_HOURS_ON: (1, 20.0, TWO_HOURS_ON + timedelta(seconds=1)),
    }
    hours = table(rolled.lake, "rollup_1h", "device", "window_start", "count")
    assert {row[1]: row[2] for row in hours if row[0] == "late"} == {
        START.replace(minute=0): 2,
        TWO_HOURS_ON.replace(minute=0): 1,
    }


def test_times_that_nobody_believes_are_kept_in_one_place(rolled: RolledLake) -> None:
    """Times before 2020 share one partition, however many days a device names; every reading counts once."""
    assert sum(count for (device, _), (count, *_) in rollup(rolled.lake).items() if device == "wrong") == 37
    for name in ("readings", "rollup_1m", "rollup_1h"):
        kept = {path.name for path in Path(rolled.lake.path(name)).glob("event_date=*")}
        assert kept == {"event_date=1970-01-01", f"event_date={START.date()}"}


def test_whatever_a_device_sends_becomes_a_reject_with_its_reason(lake: SparkLake) -> None:
    """Bodies as large, deep, long and wrong as a gateway accepts become rejects.

    They fail no batch, each has its reject, and messages of other devices are read.
    """
    large = 16 << 20
    bodies = {
        b"0" * large: reasons.NOT_FINITE,
        b"[" + b"[]," * (large // 3) + b"[]]": reasons.TOO_LARGE,
        json.dumps({"k" * 200: dict.fromkeys(map(str, range(200)), 1e9)}).encode() * 200: reasons.TOO_LARGE,
        b'{"a": ' * 40_000 + b"1" + b"}" * 40_000: reasons.TOO_DEEP,
        json.dumps(dict.fromkeys(map(str, range(20_000)), 0)).encode(): reasons.TOO_MANY,
        b'{"' + b"k" * 200_000 + b'": [' + b"1," * 200 + b"1]}": reasons.TOO_LONG,
        b'{"a": NaN}': reasons.NOT_FINITE,
        b'{"a": 1' + b"0" * 400 + b"}": reasons.NOT_FINITE,
        b'{"a": 1' + b"0" * 5_000 + b"}": reasons.NOT_A_VALUE,
        b'"\\ud800"': reasons.NOT_UNICODE,
        b'{"\\udc00": 1}': reasons.NOT_UNICODE,
        b'{"a": "\xed\xa0\x80"}': reasons.NOT_TEXT,
    }
    hostile = [message(number, body=body) for number, body in enumerate(bodies, 1)]
    hostile[0]["properties"] = json.dumps({"user-properties": "\x01" * (1 << 20)})
    epochs = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    far_off = [reading(100 + number, 1.0, START) | {"event_time": at} for number, at in enumerate(epochs)]
    values = json.dumps({"v" * 200 + str(number): 1e999 for number in range(VALUES_MAX)}).replace("Infinity", "1e999")
    land(lake, reading(0, 21.5, START), *hostile, *far_off, message(200, body=values.encode()))
    run(lake, "readings", "rollups")
    assert [row[0] for row in table(lake, "readings", "sequence")] == [0, 100, 101]
    found = table(lake, "reject", "sequence", "reason", "body")
    said = [reasons.TOO_LARGE if len(body) > BODY_BYTES_MAX else reason for body, reason in bodies.items()]
    assert [row[:2] for row in found if row[0] < 100] == sorted(enumerate(said, 1), key=repr)
    assert sum(row[0] == 200 for row in found) == VALUES_MAX
    assert max(len(row[2]) for row in found) == readings.REJECT_BODY_BYTES_MAX


def test_a_crash_between_two_outputs_and_a_replayed_batch(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    land(lake, reading(0, 1.0, START), message(1, body=b"not a number"))
    land(lake, reading(2, 3.0, START))
    append = Sink.append

    def dies_before_the_second(self: Sink, name: str, *rest: Any) -> bool:
        if name == "readings":
            raise RuntimeError("power cut")
        return append(self, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "append", dies_before_the_second)
        steps = runner.run_pass(lake, catalog.select(("readings", "rollups")), lambda _: None)
        assert [step.state for step in steps] == ["failed", "skipped"]
        assert "power cut" in (steps[0].error or "")
    assert len(table(lake, "reject")) == 1  # the first output was written before the crash
    run(lake, "readings")
    assert table(lake, "readings", "sequence") == [(0,), (2,)]
    assert table(lake, "reject", "sequence", "reason") == [(1, "neither JSON nor a number")]


@pytest.mark.slow  # `test_stream` does this in every run, with a job that is quicker
def test_a_batch_that_reached_one_table_only_is_finished_with_the_rows_it_had(
    lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that landed in the meantime do not change the batch: a row must be folded exactly once."""
    rows = [reading(n, n + 0.5, START + timedelta(seconds=20 * n)) for n in range(30)]
    land(lake, *rows[:20])
    run(lake, "readings")
    fold = Sink.fold

    def dies_before_the_days(self: Sink, name: str, *rest: Any) -> Any:
        if name == "rollup_1d":
            raise RuntimeError("power cut")
        return fold(self, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "fold", dies_before_the_days)
        steps = runner.run_pass(lake, catalog.select(["hours"]), lambda _: None)
        assert [step.state for step in steps] == ["done", "failed"]
    assert len(table(lake, "rollup_1h")) > 0
    land(lake, *rows[20:])
    run(lake, "rollups", "hours")
    assert rollup(lake) == plain_rollup(rows)
    for name in ("rollup_1h", "rollup_1d"):
        found = table(lake, name, "count", "sum", "last", "p50")
        assert found == [(30, sum(n + 0.5 for n in range(30)), 29.5, 14.5)]


def test_a_lost_table_rebuilds_everything_downstream(lake: SparkLake) -> None:
    land(lake, *(reading(n, float(n), START + timedelta(seconds=n)) for n in range(90)))
    run(lake, "readings", "rollups")
    before = rollup(lake)
    shutil.rmtree(lake.path("readings"))
    again = run(lake, "readings", "rollups")
    assert again["readings"].rows_in == again["rollups"].rows_in == 90
    assert len(table(lake, "readings")) == 90
    assert rollup(lake) == before


def test_snapshots_follow_the_lake_and_are_written_once(lake: SparkLake) -> None:
    land(lake, *(message(n) for n in range(10)), message(12))
    lakes.write(lake.place.path, "ledger", [lakes.ledger(10, 10)])
    names = ("messages", "gaps")
    lakes.write(lake.place.path, "manifests", [lakes.manifest(0, 13)])
    lakes.write(lake.place.path, "gateway_status", [lakes.status(START + timedelta(minutes=1), 0)])
    first = run(lake, *names)
    assert (first["messages"].rows_in, first["gaps"].rows_in) == (11, 1)  # messages, and a range of the ledger
    columns = ("first_sequence", "last_sequence", "explained")
    assert table(lake, "gaps", *columns) == [(10, 10, True), (11, 11, False), (13, 13, False)]
    versions = {name: lake.state(name) for name in ("gateway_freshness", "gaps", "completeness", "throughput")}
    assert {step.rows_out for step in run(lake, *names).values()} == {0}
    assert {name: lake.state(name) for name in versions} == versions
    land(lake, message(11))
    lakes.write(lake.place.path, "gateway_status", [lakes.status(START + timedelta(minutes=2), 1)])
    run(lake, "gaps")
    assert table(lake, "gaps", *columns) == [(10, 10, True)]
    counts = ("accepted", "rows", "explained", "waiting", "unexplained", "unstated")
    assert table(lake, "completeness", *counts) == [(14, 12, 1, 1, 0, 0)]
    assert table(lake, "completeness_hourly", "hour", "accepted", "landed", "given_up", "waiting", "unexplained") == [
        (START, 14, 12, '{"expired": 1}', 1, 0)
    ]


@pytest.mark.slow
def test_the_page_has_one_total_whatever_lands_during_a_pass(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with a wrong clock, messages without readings, and maintenance all leave one total."""
    land(lake, *(message(n) for n in range(5)), message(5, received_at=datetime(1970, 1, 1, tzinfo=UTC)))
    landed = iter(range(6, 40))

    def lands_after(name: str) -> Callable[..., Any]:
        write = getattr(Sink, name)

        def writes(self: Sink, *arguments: Any, **options: Any) -> Any:
            written = write(self, *arguments, **options)
            land(lake, message(next(landed)))
            return written

        return writes

    with monkeypatch.context() as patch:
        for name in ("append", "fold"):
            patch.setattr(Sink, name, lands_after(name))
        run(lake, "messages", "gaps", "rollups")
    known = queries.read(lake.place.path)
    assert not known.mixed
    assert {known.landed, *(member.rows for member in known.members)} == {6}
    there = deltalake.DeltaTable(lake.path("telemetry")).count()
    assert there > 8
    land(lake, message(next(landed), body=b"out of order"))
    run(lake, "messages", "gaps", "rollups")
    assert (drawn(lake), sources(lake)) == ({there + 1}, {there - 5})
    for name in ("telemetry", "readings", "reject", "rollup_1m"):
        kept = deltalake.DeltaTable(lake.path(name))
        kept.optimize.compact()
        kept.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert drawn(lake) == {there + 1}


def drawn(lake: SparkLake) -> set[int]:
    """Return every total on the page; fail if the page has a remark about them."""
    known = queries.read(lake.place.path)
    assert (known.mixed, known.readings_at, known.tracks_at) == (False, None, None)
    (flow,) = known.flows
    (of_gateway,) = (member.rows for member in known.members)
    values = known.readings + queries.count_rejected(known)
    version = known.versions["rollup_1m"]
    windows = deltalake.DeltaTable(lake.path("rollup_1m"), version=version).to_pyarrow_table()["count"]
    rolled = sum(windows.to_pylist()) + queries.count_rejected(known)
    landed = sum(flow.landed_live) + sum(flow.landed_backlog)
    return {known.landed, of_gateway, values, rolled, round(sum(flow.received)), round(landed)}


def sources(lake: SparkLake) -> set[int]:
    """Return the versions of telemetry from which the newest tables were derived."""
    names = ("gateway_freshness", "gaps", "completeness", "throughput", "readings")
    found = (lake.lineage(name) for name in names)
    return {made_of.telemetry.version for made_of in found if made_of is not None and made_of.telemetry is not None}


def test_a_lake_without_tables_is_nothing_to_do(lake: SparkLake) -> None:
    lake.place.path.mkdir()
    assert {(step.rows_in, step.rows_out) for step in run(lake).values()} == {(0, 0)}


def test_a_landed_table_that_breaks_the_contract_is_named(lake: SparkLake) -> None:
    deltalake.write_deltalake(lake.path("telemetry"), pa.table({"tenant": ["t"], "sequence": ["one"]}))
    steps = runner.run_pass(lake, catalog.select(("gaps",)), lambda _: None)
    assert steps[0].integrity
    assert "telemetry has no column gateway" in (steps[0].error or "")
