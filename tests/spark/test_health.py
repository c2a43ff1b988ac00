"""Device health and delivery times: equal to sums computed by hand, and independent of landing order."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.transforms import health, ranges, slo
from tests.spark.lakes import START, message
from tests.spark.test_jobs import land, run, table

if TYPE_CHECKING:
    from tests.spark.conftest import Make

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DAY = timedelta(days=1)


def reading(metric: str, value: float, at: datetime, **override: Any) -> dict[str, Any]:
    row = message(int(at.timestamp()), at=at)
    row |= {"metric": metric, "value": value, "suspect": False, "time_source": "gateway"} | override
    return row | {"event_date": row["event_time"].date()}


def utc(at: datetime) -> datetime:
    """Return a naive timestamp of this process's time zone with its zone."""
    return at.astimezone(UTC)


def test_what_readings_say_of_a_device(frame: Make) -> None:
    rows = [reading("status.battery", 4.0 - 0.01 * n, START + n * DAY) for n in range(6)]
    rows += [reading("status.battery", 1.0, START - 60 * DAY)]  # another battery, long before
    rows += [reading("uptime", 100.0, START + timedelta(seconds=second)) for second in (100, 130)]
    rows += [reading("uptime", 160.5, START + timedelta(seconds=160)), reading("uptime", 5.0, START + DAY)]
    rows += [reading("net.rssi", -60.0, START), reading("net.rssi", -70.0, START + 2 * DAY)]
    ahead = START + 5 * DAY
    rows += [reading("t", 1.0, ahead, event_time=ahead + timedelta(seconds=40), time_source="device")]
    rows += [reading("t", 1.0, ahead, event_time=ahead - DAY, time_source="device", suspect=True, sequence=7)]
    rows += [reading("t", float(n), START + n * timedelta(hours=1), device="quiet") for n in range(5)]
    rows += [reading("battery", 4.0 + n, START + timedelta(minutes=n), device="short") for n in range(5)]
    days = health.days(frame("readings", *rows)).localCheckpoint()
    assert days.schema.names == schemas.DEVICE_DAYS.columns.names
    of = health.health(days)
    assert of.schema.names == schemas.DEVICE_HEALTH.columns.names
    found = {row["device"]: row for row in of.collect()}
    one = found["dev1"]
    assert (one["battery_metric"], one["battery"]) == ("status.battery", pytest.approx(3.95))
    assert one["battery_per_day"] == pytest.approx(-0.01)
    assert one["boots"] == 2  # uptimes of one boot within seconds, and one of a day later
    assert utc(one["last_boot_at"]) == START + DAY - timedelta(seconds=5)
    assert (one["rssi"], one["clock_ahead_s"], one["suspect"]) == (-65.0, 40.0, 1)
    assert (one["silent_s"], one["missed"], utc(one["first_at"])) == (0.0, 0, START)
    quiet = found["quiet"]
    assert (quiet["messages"], quiet["interval_s"], quiet["silent_s"]) == (5, 3_600.0, 116 * 3_600.0)
    assert quiet["missed"] == 116
    assert (quiet["battery"], quiet["battery_per_day"], quiet["boots"], quiet["rssi"]) == (None, None, 0, None)
    assert (found["short"]["battery"], found["short"]["battery_per_day"]) == (8.0, None)


def test_a_battery_that_is_sent_days_later_falls_as_it_did(frame: Make) -> None:
    """A device stores measurements and sends them at once: received on one day, each with its own time."""
    at = START + 6 * DAY
    rows = [
        reading("battery", 4.0 - 0.01 * n, at, event_time=START + n * DAY, sequence=n, time_source="device")
        for n in range(6)
    ]
    rows += [reading("battery", 4.0, at, device="odd", event_time=START - 9_000 * DAY, suspect=True)]
    (one, odd) = sorted(health.health(health.days(frame("readings", *rows))).collect(), key=lambda row: row["device"])
    assert (one["battery"], one["battery_per_day"]) == (pytest.approx(3.95), pytest.approx(-0.01))
    assert (odd["battery"], odd["battery_per_day"]) == (4.0, None)


def test_the_highest_sequence_there_is_joins_what_touches_it(frame: Make) -> None:
    highest = (1 << 63) - 1
    key = {"tenant": "t", "gateway": "g", "epoch": "e", "address": "a", "rows": 1}
    spans = ((highest, highest), (highest - 1, highest - 1), (highest - 1, highest), (0, 0))
    rows = [key | {"first_sequence": first, "last_sequence": last} for first, last in spans]
    found = ranges.merge_landed(frame("landed_ranges", *rows)).collect()
    assert sorted((row["first_sequence"], row["last_sequence"], row["rows"]) for row in found) == [
        (0, 0, 1),
        (highest - 1, highest, 3),
    ]


def test_a_day_that_has_not_come_is_none(frame: Make) -> None:
    """A day in the future does not count: the gateway's clock was in 2038, or in 1970, for a while."""
    wrong = (datetime(2038, 1, 19, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC))
    rows = [reading("t", 1.0, START + n * DAY, ingested_at=START + n * DAY) for n in range(3)]
    rows += [reading("t", 1.0, START, sequence=90 + n, received_at=at) for n, at in enumerate(wrong)]
    days = health.days(frame("readings", *rows)).localCheckpoint()
    assert {row["event_date"] for row in days.collect()} == {(START + n * DAY).date() for n in range(3)}
    (one,) = health.health(days).collect()
    assert (one["messages"], utc(one["last_at"])) == (5, START + 2 * DAY)


def test_delivery_times(frame: Make) -> None:
    def landed(received: float, after: float, **override: Any) -> dict[str, Any]:
        at = START + timedelta(seconds=received)
        return message(at=at, ingested_at=at + timedelta(seconds=after), **override)

    hour = START.replace(minute=0)
    found = slo.slo(
        frame(
            "telemetry",
            *(landed(n, 1.0 + n) for n in range(10)),
            landed(20, 60.0),
            landed(21, 60.5),
            landed(3_600, 7_200.0),
            landed(3_700, 1.0, received_at=datetime(1970, 1, 1, tzinfo=UTC)),
        )
    )
    assert found.schema.names == schemas.DELIVERY_SLO.columns.names
    rows = {(row["width_s"], utc(row["window_start"])): row for row in found.collect()}
    names = ("messages", "timed", "within", "max_s")
    assert {key: tuple(row[name] for name in names) for key, row in rows.items()} == {
        (3_600, hour): (12, 12, 11, 60.5),
        (3_600, hour + timedelta(hours=1)): (2, 1, 0, 7_200.0),
        (86_400, hour.replace(hour=0)): (14, 13, 11, 7_200.0),
    }
    assert rows[3_600, hour]["p50_s"] == pytest.approx(6.0, abs=1.0)
    assert rows[3_600, hour]["within_share"] == pytest.approx(11 / 12)
    assert rows[3_600, hour + timedelta(hours=1)]["p99_s"] == 7_200.0


@pytest.mark.slow
def test_in_parts_as_at_once(lake: Any, frame: Make) -> None:
    """Messages land in two passes, out of order; a third pass has none."""
    source = random.Random(11)
    rows = []
    for n in range(90):
        at = START + timedelta(minutes=37 * n)
        body = {
            "battery": 4 - n / 100,
            "uptime": 60 * (n % 30),
            "rssi": -n,
            "ts": (at + timedelta(seconds=n % 7)).isoformat(),
        }
        late = timedelta(seconds=source.choice((1, 30, 90, 4_000)))
        rows.append(message(n, at=at, device=f"dev{n % 3}", body=json.dumps(body).encode(), ingested_at=at + late))
    source.shuffle(rows)
    land(lake, *rows[:50])
    run(lake, "health", "messages")
    land(lake, *rows[50:])
    run(lake, "health", "messages")
    assert {step.rows_out for step in run(lake, "health", "messages").values()} == {0}

    def plain(name: str, rows: Any) -> list[tuple[Any, ...]]:
        columns = [c for c in rows.columns if c not in ("times", "p50_s", "p95_s", "p99_s")]
        collected = rows.select(
            *(F.unix_micros(c).alias(c) if kind == "timestamp" else c for c, kind in rows.dtypes if c in columns)
        )
        return sorted((tuple(_rounded(value) for value in row) for row in collected.collect()), key=repr)

    readings = lake.read("readings")
    for name, batch in (
        ("device_days", health.days(readings)),
        ("device_health", health.health(health.days(readings))),
        ("delivery_slo", slo.slo(lake.read("telemetry"))),
    ):
        assert plain(name, lake.read(name)) == plain(name, batch), name
    assert sum(row[0] for row in table(lake, "device_health", "messages")) == 90
    hours = table(lake, "delivery_slo", "width_s", "messages")
    assert {width: sum(count for w, count in hours if w == width) for width in (3_600, 86_400)} == {
        3_600: 90,
        86_400: 90,
    }


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
