"""Stamps of wrong clocks put right in this process: the same as Spark makes of them, and of each table they are in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.decoding import reasons
from spark.decoding.limits import BODY_BYTES_MAX
from spark.here import clocks as here
from spark.here import slo
from spark.here.sketches import quantiles
from spark.here.times import TIME, or_unknown, trusted, trusted_reception
from spark.jobs import catalog, runner
from spark.jobs.following import Following
from spark.tables import Lake
from spark.transforms import clocks
from spark.transforms.times import with_trusted_reception, with_trusted_times
from tests.spark import lakes
from tests.spark.lakes import START, Row, clock_offset, message
from tests.spark.messages_here import WRONG, columns
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_129
NOW = START + timedelta(hours=1)
DAY = timedelta(days=1)
SEQUENCE_MAX = 2**63 - 1
MINUTE_US = 60_000_000
OFFSETS_US = (None, 0, 7, MINUTE_US, MINUTE_US + 1, -90 * MINUTE_US, 10 * 24 * 60 * MINUTE_US)
ADDRESSES = ("load/cpu", "Gerät", "spBv1.0/plant/NDATA/press")
MESSAGE = tuple(name for name in schemas.TELEMETRY.columns.names if name != "ingest_date")
JOBS = {
    "freshness": ("gateway_freshness",),
    "slo": ("delivery_slo",),
    "throughput": ("throughput",),
    "outages": ("outages",),
    "readings": ("readings", "reject"),
}
BODIES = (
    b"21.5",
    b"x",
    b"",
    b'{"t": 1, "u": {"v": 2}}',
    b'{"t": NaN, "u": 2}',
    b'{"t": 1, "ts": %d}' % START.timestamp(),
    b'{"t": 1, "ts": 5}',
    json.dumps([{"n": "t", "v": 1, "t": -60}, {"n": "u", "v": 1, "t": START.timestamp()}]).encode(),
    json.dumps([{"n": "t", "v": 1, "t": START.timestamp()}]).encode(),
    b'{"a": ' + b" " * BODY_BYTES_MAX + b"1}",
)


def gateway(randoms: Random) -> Row:
    tenant, name = randoms.choice((("default", "g"), ("default", "h"), ("default", "Gerät"), ("other", "g")))
    return {"tenant": tenant, "gateway": name}


def sent(randoms: Random, addresses: Sequence[str] = ADDRESSES) -> Row:
    landed = START - timedelta(seconds=randoms.choice((0, 1, 86_400, 200_000)), microseconds=randoms.randrange(9))
    after = (0.0, 1.5, 59.0, 60.0, 60.000001, 5_400.0, -400.0, -30.0)
    stamps = [landed - timedelta(seconds=randoms.choice(after)) for _ in range(6)]
    received = randoms.choice([*stamps, START - DAY, *WRONG])
    row = message(
        at=received,
        ingested_at=landed,
        epoch=randoms.choice(("e1", "e1", "e2")),
        address=randoms.choice(addresses),
        device=randoms.choice(("d", "e")),
        event_time=randoms.choice((received, received, received, START - timedelta(hours=2), *WRONG)),
        clock_quality=randoms.choice(("unknown", "unknown", "good")),
        lane=randoms.choice(("live", "backlog")),
        body=randoms.choice(BODIES),
    )
    return row | gateway(randoms) | {"sequence": randoms.choice((*range(30), SEQUENCE_MAX))}


def told(randoms: Random) -> Row:
    """A range of messages, which may overlap with others of its stream, or a whole stretch."""
    first = randoms.choice((None, *range(30), SEQUENCE_MAX))
    known = randoms.choice(("measured", "never", "never", "not yet"))
    low, high = randoms.choice(OFFSETS_US), randoms.choice(OFFSETS_US)
    row = clock_offset(first, None if first is None else min(first + randoms.randrange(9), SEQUENCE_MAX))
    row |= {} if first is None else {"epoch": randoms.choice(("e1", "e2")), "address": randoms.choice(ADDRESSES)}
    return (
        row
        | gateway(randoms)
        | {
            "boot": randoms.choice(("b1", "b2")),
            "stretch": randoms.choice((1, 1, 2, SEQUENCE_MAX)),
            "known": known,
            "offset_low_us": low,
            "offset_high_us": low if known == "measured" else high,
            "whole": randoms.random() < 0.2,
            "stamped_after": randoms.choice((None, None, START - DAY, WRONG[0])),
            "stamped_until": randoms.choice((None, None, START - DAY, WRONG[1])),
            "told_at": START - timedelta(seconds=randoms.choice((0, 60, 61, 90_000))),
        }
    )


def fleet(ranges: int, addresses: Sequence[str] = ADDRESSES) -> tuple[list[Row], list[Row]]:
    """Messages, and what their gateways have told, some of it twice."""
    randoms = Random(chosen_seed(SEED) + ranges)
    offsets = [told(randoms) for _ in range(ranges)]
    return [sent(randoms, addresses) for _ in range(700)], [*offsets, *offsets[:20]]


def arrow(offsets: Sequence[Row]) -> pa.Table:
    names = schemas.CLOCK_OFFSETS.columns.names
    rows = [{name: row.get(name) for name in names} for row in offsets]
    return pa.Table.from_pylist(rows, schemas.CLOCK_OFFSETS.arrow).select(here.OFFSET)


def shown(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """In a fixed order; times as whole microseconds, since no datetime has what some offsets lead to."""
    kept = {name: rows[name] for name in names}
    times = {name for name, column in kept.items() if pa.types.is_timestamp(column.type)}
    whole = {name: column.cast(pa.int64()) if name in times else column for name, column in kept.items()}
    return sorted((tuple(row.values()) for row in pa.table(whole).to_pylist()), key=repr)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranges", [3, 30, 100, 400])
def test_spark_makes_the_same_of_them(frame: Make, ranges: int) -> None:
    rows, offsets = fleet(ranges)
    messages, known = columns(rows, MESSAGE), here.told(arrow(offsets))
    there = frame("telemetry", *rows).drop("ingest_date"), frame("clock_offsets", *offsets)
    judged, theirs = here.judged(messages, known, NOW), clocks.judged(*there, NOW).toArrow()
    names = [*MESSAGE, "held"]
    assert shown(judged, names) == shown(theirs, names)
    assert judged.column_names == names
    found = set(zip(judged["clock_quality"].to_pylist(), judged["held"].to_pylist(), strict=True))
    of_each = {("good", False), ("measured", False), ("bounded", False), ("unknown", False), ("unknown", True)}
    assert ranges != 100 or found == of_each
    delivered = here.delivered(messages, known)
    names = [name for name in MESSAGE if name != "clock_quality"]  # which is not looked at there
    assert shown(delivered, names) == shown(clocks.delivered(*there).toArrow(), names)
    nobody_knows = [delivered[name].null_count for name in ("event_time", "received_at")]
    assert 0 < nobody_knows[0] < nobody_knows[1]


@pytest.fixture
def alone(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    return Lake(session, tmp_path / "alone", here=True)


@pytest.fixture(autouse=True)
def _at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "now", lambda: NOW)


def land(lake: Lake, job: str, rows: Sequence[Row], offsets: Sequence[Row]) -> None:
    """Have a job take them, in two batches of some files."""
    lakes.write(lake.place, "clock_offsets", offsets)
    for some in (rows[:400], rows[400:]):
        lakes.write(lake.place, "telemetry", some)
        following = catalog.chosen([job])[0].steps[0]
        assert isinstance(following, Following)
        following.run(lake)


def written(lake: Lake, table: str) -> list[list[Any]]:
    """Of sketches the quantiles, of doubles what is near."""
    rows = lake.at(table).delta().to_pyarrow_table().select(schemas.DERIVED[table].columns.names)
    times = [name for name in rows.column_names if pa.types.is_timestamp(rows[name].type)]
    rows = rows.cast(pa.schema([(f.name, pa.int64() if f.name in times else f.type) for f in rows.schema]))
    sketches = {"lags", "times"}
    told = [
        {
            name: quantiles(value, (0.0, 0.5, 0.95, 1.0)) if name in sketches and value is not None else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]
    return [[near(value) for value in row.values()] for row in sorted(told, key=lambda row: repr(list(row.values())))]


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("job", JOBS)
def test_a_job_writes_without_spark_what_it_writes_with_it(alone: Lake, larger: Lake, job: str) -> None:
    rows, offsets = fleet(100, ADDRESSES[:2] if job == "readings" else ADDRESSES)
    for lake in (alone, larger):
        land(lake, job, rows, offsets)
    for table in JOBS[job]:
        ours = written(alone, table)
        assert ours == written(larger, table)
        assert len(ours) > 4
    if job == "readings":
        assert reasons.CLOCK in alone.at("reject").delta().to_pyarrow_table()["reason"].to_pylist()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_time_that_nobody_knows_is_suspect_and_that_of_the_ingestion(frame: Make) -> None:
    stamps = [None, START, START + timedelta(seconds=300), START + timedelta(seconds=301), *WRONG]
    rows = [message(n, at=at or START) | {"ingested_at": START} for n, at in enumerate(stamps)]
    nullable = {name: F.when(F.col("sequence") > 0, F.col(name)) for name in ("event_time", "received_at")}
    there = frame("telemetry", *rows).withColumns(nullable)
    ingested = np.full(len(rows), int(START.timestamp()) * 1_000_000)
    times = or_unknown(pa.chunked_array([pa.array(stamps[:2], TIME), pa.array(stamps[2:], TIME)]))
    for ours, theirs, name in (
        (trusted(times, ingested), with_trusted_times(there), "event_time"),
        (trusted_reception(times, ingested), with_trusted_reception(there), "received_at"),
    ):
        expected = theirs.select("sequence", name, "suspect").toArrow().sort_by("sequence")
        assert pa.array(ours.at).cast(TIME).to_pylist() == expected[name].cast(TIME).to_pylist()
        assert list(ours.suspect) == expected["suspect"].to_pylist()
        assert (ours.suspect[0], ours.at[0]) == (True, ingested[0])


def test_messages_of_clocks_that_were_right_are_not_looked_at() -> None:
    right = columns([message(n) for n in range(3)], MESSAGE)
    nothing: Any = None
    assert here.judged(right, nothing, NOW) is right
    assert here.delivered(right, nothing) is right


def test_of_nothing_told_of_messages_and_of_no_messages() -> None:
    unsure = columns([message(n, clock_quality="unknown") for n in range(3)], MESSAGE)
    for offsets in ([], [clock_offset(gateway="other")], [clock_offset(0, 9, gateway="other", known="measured")]):
        known = here.told(arrow(offsets))
        assert here.delivered(unsure, known).select(MESSAGE).equals(unsure)
        assert len(here.judged(unsure.slice(0, 0), known, NOW)) == 0


def test_columns_of_stamps_are_read_only_where_offsets_are_told(alone: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def read(_: Lake, name: str, files: Any, names: Sequence[str]) -> Iterator[pa.Table]:
        asked.append((name, *names))
        return columns_of(alone, name, files, names)

    columns_of = Lake.columns_of
    monkeypatch.setattr(Lake, "columns_of", read)
    land(alone, "slo", [message(0)] * 401, [])
    assert set(asked) == {("telemetry", *slo.MESSAGE)}
    asked.clear()
    land(alone, "slo", [message(0)] * 401, [clock_offset()])
    new = [name for name in here.STAMP if name not in slo.MESSAGE]
    assert set(asked) == {("clock_offsets", *here.OFFSET), ("telemetry", *slo.MESSAGE, *new)}


def test_offsets_that_are_not_what_was_written_are_set_aside_and_named(alone: Lake) -> None:
    for gateway in ("gw8", "gw9"):
        lakes.write(alone.place, "clock_offsets", [clock_offset(0, 9, gateway=gateway, known="measured")])
    damaged, _ = alone.at("clock_offsets").delta().file_uris()
    path = Path(damaged.removeprefix("file://"))
    path.write_bytes(bytes(path.stat().st_size))
    lakes.write(alone.place, "telemetry", [message(0, clock_quality="unknown")])
    (step,) = runner.one_pass(alone, catalog.chosen(["freshness"]), lambda _: None)
    assert (step.state, alone.rows("gateway_freshness")) == ("done", 2)
    (note,) = step.notes
    assert "clock_offsets" in note


def test_a_fleet_that_tells_offsets_needs_no_spark(alone: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when more is told or lands, nor each hour: nothing is held, and nothing can be read again."""
    off = {"known": "measured", "offset_low_us": 5, "offset_high_us": 5}
    for hour in range(3):
        lakes.write(alone.place, "clock_offsets", [clock_offset(0, 9, stretch=hour, **off, whole=True)])
        lakes.write(alone.place, "telemetry", [message(n, clock_quality="unknown", body=b"1") for n in range(3)])
        lakes.write(alone.place, "telemetry", [message(hour, body=b"x")])
        monkeypatch.setattr(clocks, "now", lambda hour=hour: NOW + timedelta(hours=hour))
        steps = runner.one_pass(alone, catalog.chosen(list(JOBS)), lambda _: None)
        assert {step.job: step.error for step in steps} == dict.fromkeys([step.job for step in steps])
    assert (alone.rows("readings"), alone.rows("reject")) == (9, 3)
