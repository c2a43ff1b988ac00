"""Stamps of wrong clocks: held, corrected, bounded or used unchanged; every message counts once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from spark.decoding import reasons
from spark.jobs import readings as readings_job
from spark.lake import SparkLake
from spark.transforms import clocks
from tests.spark import lakes
from tests.spark.lakes import START, clock_offset, message
from tests.spark.test_jobs import land, run, table

if TYPE_CHECKING:
    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DAY = timedelta(days=1)
BEHIND = timedelta(days=10)
"""Lag of the gateway's clock."""
OFF_US = int(BEHIND.total_seconds()) * 1_000_000
MEASURED: dict[str, Any] = {"known": "measured", "offset_low_us": OFF_US, "offset_high_us": OFF_US}
ANNOUNCED: dict[str, Any] = {"told_at": START - BEHIND, "heard_at": START}


def stamped(sequence: int, at: datetime, body: object = None, **override: Any) -> dict[str, Any]:
    """Build a message received at that time and stamped by a clock that lags by `BEHIND`."""
    row = message(sequence, at=at - BEHIND, clock_quality="unknown", body=json.dumps(body or {"t": sequence}).encode())
    return row | {"ingested_at": START + timedelta(minutes=5), "ingest_date": START.date()} | override


def test_what_becomes_of_a_stamp(frame: Make) -> None:
    at = START - timedelta(hours=1)
    never: dict[str, Any] = {"known": "never", "stretch": 9}
    minute = 60_000_000
    told = [
        clock_offset(**ANNOUNCED),
        clock_offset(0, 9, **MEASURED),
        clock_offset(0, 9, **MEASURED, heard_at=START + DAY),  # repeated after a crash of the hub
        clock_offset(10, 19, **MEASURED, stamped_until=at - BEHIND),
        clock_offset(10, 19, stretch=2, known="measured", offset_low_us=7, offset_high_us=7, stamped_after=at - BEHIND),
        clock_offset(20, 20, **never, offset_low_us=3 * minute, offset_high_us=5 * minute),
        clock_offset(21, 21, **never, offset_low_us=-3 * minute, offset_high_us=5 * minute),
        clock_offset(22, 22, **never, offset_high_us=-5 * minute),
        clock_offset(23, 23, **never),
        clock_offset(0, 99, **MEASURED, address="else/where"),
        clock_offset(stretch=3, gateway="whole", **ANNOUNCED),
        clock_offset(stretch=3, gateway="whole", **MEASURED, whole=True),
        clock_offset(stretch=4, gateway="near", told_at=START - timedelta(seconds=59)),
        clock_offset(stretch=5, gateway="unannounced", **MEASURED),
        clock_offset(stretch=6, gateway="lost", known="never"),
    ]
    own, landed = at - timedelta(hours=2), START + timedelta(minutes=5)
    rows = [
        stamped(0, at),
        stamped(9, at, event_time=own),
        stamped(1, at, clock_quality="good"),
        stamped(10, at),
        stamped(11, at + timedelta(seconds=1)),
        *(stamped(number, at) for number in (20, 21, 22, 23)),
        stamped(30, at),
        stamped(31, landed + BEHIND - timedelta(seconds=59)),
        stamped(32, landed + BEHIND + timedelta(seconds=61)),
        stamped(33, at, ingested_at=START - DAY),
        *(stamped(0, at, gateway=name) for name in ("whole", "near", "unannounced", "lost", "silent")),
        stamped(0, at, address="spBv1.0/plant/NDATA/press"),
    ]
    now = START + timedelta(minutes=1)
    judged = clocks.correct_for_readings(frame("telemetry", *rows), frame("clock_offsets", *told), now).collect()
    assert len(judged) == len(rows)
    raw = {(row["gateway"], row["address"], row["sequence"]): row["received_at"] for row in rows}
    found = {
        (row["gateway"], row["address"] == "load/cpu", row["sequence"]): (
            row["received_at"].astimezone(UTC) - raw[row["gateway"], row["address"], row["sequence"]],
            row["clock_quality"],
            row["held"],
        )
        for row in judged
    }
    nothing = timedelta(0)
    assert found == {
        ("gw1", True, 0): (BEHIND, "measured", False),
        ("gw1", True, 9): (BEHIND, "measured", False),
        ("gw1", True, 1): (nothing, "good", False),
        ("gw1", True, 10): (BEHIND, "measured", False),
        ("gw1", True, 11): (timedelta(microseconds=7), "measured", False),
        ("gw1", True, 20): (timedelta(minutes=3), "bounded", False),
        ("gw1", True, 21): (nothing, "bounded", False),
        ("gw1", True, 22): (timedelta(minutes=-5), "bounded", False),
        ("gw1", True, 23): (nothing, "bounded", False),
        ("gw1", True, 30): (nothing, "unknown", True),
        ("gw1", True, 31): (nothing, "unknown", False),
        ("gw1", True, 32): (nothing, "unknown", True),
        ("gw1", True, 33): (nothing, "unknown", False),
        ("whole", True, 0): (nothing, "unknown", False),
        ("near", True, 0): (nothing, "unknown", False),
        ("unannounced", True, 0): (nothing, "unknown", True),
        ("lost", True, 0): (nothing, "unknown", True),
        ("silent", True, 0): (nothing, "unknown", False),
        ("gw1", False, 0): (nothing, "unknown", False),
    }
    events = {(row["gateway"], row["sequence"]): row["event_time"].astimezone(UTC) for row in judged}
    assert events["gw1", 9] == own, "whose clock that is, nobody said it was wrong"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the clock of the jobs, relative to `START`."""

    def set_to(after: timedelta) -> None:
        monkeypatch.setattr(clocks, "now", lambda: START + after)

    set_to(timedelta(minutes=6))
    return set_to


def offsets(lake: SparkLake, *rows: dict[str, Any]) -> None:
    lakes.write(lake.place, "clock_offsets", rows)


def readings(lake: SparkLake) -> list[tuple[Any, ...]]:
    found = table(lake, "readings", "gateway", "sequence", "metric", "event_time", "clock_quality", "suspect")
    return [(*row[:3], row[3].astimezone(UTC), *row[4:]) for row in found]


def take(lake: SparkLake) -> int:
    """Process new messages and those due for another try; return the number of readings written."""
    stream, again, *_ = readings_job.JOB.steps
    return stream.run(lake).rows_out + again.run(lake).rows_out


@pytest.mark.slow
def test_messages_are_held_and_come_back_at_their_time(lake: SparkLake, later: Any) -> None:
    minutes = [START - timedelta(hours=3) + timedelta(minutes=number) for number in range(4)]
    wrong = [stamped(number, at) for number, at in enumerate(minutes)]
    timed = stamped(9, minutes[0], {"ts": minutes[0].timestamp(), "t": 9})
    relative = stamped(10, minutes[0], [{"n": "t", "v": 10, "t": -60}])
    offsets(lake, clock_offset(**ANNOUNCED))
    land(lake, *wrong[:2], timed, relative, message(0, at=minutes[0], gateway="gw2", body=b'{"t": 1}'))
    take(lake)
    held = [(number, "", reasons.CLOCK) for number in (0, 1, 10)]
    assert table(lake, "reject", "sequence", "metric", "reason") == sorted(held, key=repr)
    assert [row[:2] for row in readings(lake)] == [("gw1", 9), ("gw2", 0)]

    twice = clock_offset(0, 99, **MEASURED)
    offsets(lake, clock_offset(**MEASURED), twice, twice, clock_offset(**MEASURED, whole=True))
    land(lake, *wrong[2:])  # their time is already known when they land
    take(lake)
    assert table(lake, "reject", "sequence") == []
    expected = [("gw1", number, "t", at, "measured", False) for number, at in enumerate(minutes)]
    expected.append(("gw1", 9, "t", minutes[0], "unknown", False))  # a device's own time: read when it landed
    expected.append(("gw1", 10, "t", minutes[0] - timedelta(seconds=60), "measured", False))
    expected.append(("gw2", 0, "t", minutes[0], "good", False))
    assert readings(lake) == sorted(expected, key=repr)
    assert take(lake) == 0
    assert readings(lake) == sorted(expected, key=repr)


@pytest.mark.slow
def test_who_never_learns_the_time_is_not_held_for_ever(lake: SparkLake, later: Any) -> None:
    at = START - timedelta(hours=3)
    offsets(lake, clock_offset(**ANNOUNCED))
    land(lake, stamped(0, at))
    take(lake)
    later(timedelta(hours=clocks.HELD_HOURS_MAX))
    take(lake)
    assert not readings(lake)
    later(timedelta(hours=clocks.HELD_HOURS_MAX, minutes=65))
    take(lake)
    assert readings(lake) == [("gw1", 0, "t", at - BEHIND, "unknown", False)]
    assert table(lake, "reject", "sequence") == []
    later(timedelta(hours=clocks.HELD_HOURS_MAX + 3))
    offsets(lake, clock_offset(0, 99, **MEASURED))
    take(lake)
    assert len(readings(lake)) == 1


@pytest.mark.slow
def test_a_time_within_bounds_is_suspect(lake: SparkLake, later: Any) -> None:
    later(timedelta(minutes=6))
    at = START - timedelta(hours=3)
    away = OFF_US - 60_000_000
    never: dict[str, Any] = {"known": "never", "reason": "why", "offset_low_us": away, "offset_high_us": OFF_US}
    offsets(lake, clock_offset(**ANNOUNCED))
    land(lake, stamped(0, at), stamped(1, at, {"ts": at.timestamp(), "t": 1}))
    take(lake)
    offsets(lake, clock_offset(0, 9, **never), clock_offset(**never, whole=True))
    take(lake)
    near = at - timedelta(seconds=60)
    assert readings(lake) == [("gw1", 0, "t", near, "bounded", True), ("gw1", 1, "t", at, "unknown", False)]


def utc(time: datetime | None) -> datetime | None:
    return time.astimezone(UTC) if time is not None else None


def test_how_long_messages_took_is_told_of_right_stamps_only(frame: Make) -> None:
    at = START - timedelta(hours=1)
    told = [
        clock_offset(**ANNOUNCED),
        clock_offset(0, 9, **MEASURED),
        clock_offset(0, 9, **MEASURED, address="spBv1.0/plant/NDATA/press"),
        clock_offset(20, 20, known="never", stretch=9, offset_high_us=OFF_US),
    ]
    own = at - timedelta(hours=2)
    rows = [
        stamped(0, at),
        stamped(1, at, clock_quality="good"),
        stamped(2, at, address="spBv1.0/plant/NDATA/press"),
        stamped(20, at),
        stamped(30, at),
        stamped(31, at, event_time=own),
        stamped(32, at, gateway="silent"),
    ]
    found = clocks.correct_for_delivery(frame("telemetry", *rows), frame("clock_offsets", *told)).collect()
    times = {row["sequence"]: [utc(row["received_at"]), utc(row["event_time"])] for row in found}
    stamp = at - BEHIND
    assert times == {
        0: [at, at],
        1: [stamp, stamp],
        2: [at, at],
        20: [None, None],
        30: [None, None],
        31: [None, own],
        32: [stamp, stamp],
    }


def test_a_wrong_clock_makes_no_outage_and_misses_no_target(lake: SparkLake) -> None:
    landed = START + timedelta(minutes=5)
    offsets(lake, clock_offset(**ANNOUNCED), clock_offset(0, 9, **MEASURED))
    known = [stamped(number, landed - timedelta(seconds=10 * number)) for number in range(8)]
    unknown = [stamped(number, landed - timedelta(seconds=1), lane="backlog") for number in range(10, 13)]
    land(lake, *known, *unknown)
    run(lake, "messages")
    of_all = table(lake, "gateway_freshness", "device", "rows", "late_rows", "suspect_rows", "lag_max_s")[-1]
    assert of_all == (None, 11, 4, 3, 70.0)
    hours = table(lake, "delivery_slo", "width_s", "window_start", "messages", "timed", "within", "max_s")
    hour, day = START.replace(minute=0), START.replace(hour=0, minute=0)
    assert hours == [(3_600, hour, 11, 8, 7, 70.0), (86_400, day, 11, 8, 7, 70.0)]
    assert table(lake, "outages", "began", "until", "drained", "messages") == [(landed, landed, landed, 3)]
    buckets = table(lake, "throughput", "bucket", "received")
    assert sum(count for _, count in buckets) == 11
    assert min(bucket for bucket, _ in buckets) == landed - timedelta(seconds=70)
